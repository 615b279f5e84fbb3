//! Tests the whole builder with a small device crate (a crate of GPU kernels). The crate has a path
//! dependency and two units. Each unit becomes one PTX file.
//!
//! This file has only one test, because the test sets environment variables, which parallel tests would read.
//! If no other crate did, the first run of the test compiles `core`. The test does not delete its target
//! folder, so later runs are much faster.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cuda_builder::{Arch, Built, CudaBuilder, Error};

const LIB: &str = r#"#![no_std]
#![feature(abi_ptx, stdarch_nvptx)]
#[cfg(any(not(unit), unit = "scale"))]
pub mod scale;
#[cfg(any(not(unit), unit = "shift"))]
pub mod shift;
mod shared;
"#;

const SCALE: &str = r#"
/// Doubles one number per thread.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn scale(x: *mut f32) {
    device_base::launch_bounds::<256, 4>();
    unsafe { *x.add(crate::shared::thread()) *= crate::shared::two() }
}
"#;

const SHIFT: &str = r#"
/// Adds one to one number per thread.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn shift(x: *mut f32) {
    device_base::launch_bounds::<128, 8>();
    unsafe { *x.add(crate::shared::thread()) += 1.0 }
}
"#;

/// Source code that both units (parts) of the device crate share. The code causes a compiler warning in each
/// unit. The unit `shift` does not use the function `two`.
const SHARED: &str = r#"
pub fn thread() -> usize {
    let unused = 1;
    unsafe { core::arch::nvptx::_thread_idx_x() as usize }
}
pub fn two() -> f32 { 2.0 }
"#;

const BASE: &str = r#"#![no_std]
#![feature(asm_experimental_arch)]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
#[inline(always)]
pub fn launch_bounds<const THREADS: u32, const BLOCKS: u32>() {
    unsafe {
        core::arch::asm!("//@entry .maxntid {}, 1, 1 .minnctapersm {}", const THREADS, const BLOCKS,
            options(nomem, nostack, preserves_flags))
    }
}
"#;

/// A workspace with the crates `kernels` and `base`, in the temporary folder that cargo provides for tests.
/// The path contains spaces, because the builder must support such paths.
struct Fixture(PathBuf);

impl Fixture {
    fn new() -> Fixture {
        let fixture = Fixture(Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda builder test"));
        for folder in ["out", "copy", "taken"] {
            let _ = fs::remove_dir_all(fixture.path(folder));
        }
        fixture.share_core();
        let toolchain = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rust-toolchain.toml");
        fixture.write("rust-toolchain.toml", &fs::read_to_string(toolchain).unwrap());
        fixture.write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"kernels\", \"base\"]\n");
        let package =
            |name: &str| format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
        let dependency = "[dependencies]\ndevice-base = { path = \"../base\" }\n";
        let lints = "[lints.rust]\nunexpected_cfgs = { level = \"warn\", check-cfg = [\"cfg(unit, values(any()))\"] }\n";
        fixture.write("kernels/Cargo.toml", &(package("device-kernels") + dependency + lints));
        fixture.write("base/Cargo.toml", &package("device-base"));
        for (name, text) in [("lib", LIB), ("scale", SCALE), ("shift", SHIFT), ("shared", SHARED)] {
            fixture.write(&format!("kernels/src/{name}.rs"), text);
        }
        fixture.write("base/src/lib.rs", BASE);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Links the folder of the compiled `core` to that of the outer target folder, because the compilation of
    /// `core` takes longer than the rest of the test.
    fn share_core(&self) {
        let outer = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../cuda-builder/sysroot");
        let inner = self.path("target/cuda-builder");
        for folder in [&outer, &inner] {
            fs::create_dir_all(folder).unwrap();
        }
        let _ = std::os::unix::fs::symlink(fs::canonicalize(outer).unwrap(), inner.join("sysroot"));
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if fs::read_to_string(&path).ok().as_deref() != Some(text) {
            fs::write(path, text).unwrap();
        }
    }

    fn builder(&self) -> CudaBuilder {
        let builder = CudaBuilder::new(self.path("kernels")).archs([Arch::Sm75, Arch::Sm90]).line_info(true);
        builder.out_dir(self.path("out")).target_dir(self.path("target")).copy_to(self.path("copy"))
    }

    /// Returns the path of the folder in which the builder compiles the crate `kernels`.
    fn build_folder(&self) -> String {
        let folders = fs::read_dir(self.path("target/cuda-builder")).unwrap();
        let mut names = folders.map(|folder| folder.unwrap().file_name().into_string().unwrap());
        let name = names.find(|name| name.starts_with("device-kernels-"));
        format!("target/cuda-builder/{}", name.expect("the package's name and a hash"))
    }

    /// Returns the text of a copied PTX file without the stamp (the comments at its start).
    fn copy(&self, name: &str) -> String {
        let text = fs::read_to_string(self.path("copy/device-kernels").join(name)).unwrap();
        text[text.find(".version").unwrap()..].to_string()
    }

    /// Returns the modification times of these files.
    fn times<const N: usize>(&self, files: [&str; N]) -> [SystemTime; N] {
        files.map(|file| fs::metadata(self.path(file)).unwrap().modified().unwrap())
    }
}

fn text(built: &Built, arch: Arch) -> String {
    fs::read_to_string(built.ptx(arch).unwrap()).unwrap()
}

/// Sets an environment variable of this process.
fn set_var(name: &str, value: impl AsRef<std::ffi::OsStr>) {
    // SAFETY: this binary has one test, so no other thread reads the environment at the same time.
    unsafe { std::env::set_var(name, value) }
}

#[test]
fn from_device_crate_to_ptx() {
    let fixture = Fixture::new();
    set_var("OXIWARP_LINE_INFO", "");
    // `cargo clippy`, or a host build with different compiler flags, would set these variables. The builder
    // must ignore them.
    set_var("RUSTFLAGS", "--no-such-flag");
    set_var("RUSTC_WORKSPACE_WRAPPER", "/no/such/wrapper");
    set_var("CARGO_PROFILE_RELEASE_LTO", "off");

    let built = fixture.builder().build().unwrap();
    check_texts(&fixture, &built);
    // The first build wrote the lock file, and the PTX depends on this file. The second build therefore
    // compiles again.
    fixture.builder().build().unwrap();
    let cargos = fixture.build_folder() + "/sm_90/rustc.ptx";
    let files = ["out/sm_75.ptx", "out/sm_90.ptx", "copy/device-kernels/sm_75.ptx", &cargos];
    let times = fixture.times(files);
    fixture.builder().build().unwrap();
    assert_eq!(fixture.times(files), times, "nothing changed, so nothing was to be written");

    fixture.write("kernels/src/scale.rs", &SCALE.replace("*= ", "+= 3.0 *"));
    let edited = text(&fixture.builder().build().unwrap(), Arch::Sm90);
    assert!(edited.contains("0f40C00000"), "an edit reaches the PTX: {edited}");
    fixture.write("base/src/lib.rs", &BASE.replace(".minnctapersm {}\"", ".maxnreg {}\""));
    let edited = text(&fixture.builder().build().unwrap(), Arch::Sm75);
    assert!(edited.contains("\n.maxnreg 4\n{"), "so does an edit of a path dependency: {edited}");

    units(&fixture);
    link(&fixture);

    fixture.write("kernels/src/shift.rs", &SHIFT.replace("x.add(", "y.add("));
    let error = fixture.builder().build().unwrap_err();
    assert!(matches!(error, Error::Compile { arch: Arch::Sm75, .. }), "{error}");
    let said = error.to_string();
    assert!(said.starts_with("kernels does not compile for sm_75:") && said.contains("`y`"), "{said}");
    let error = fixture.builder().units(["scale", "shift"]).build().unwrap_err().to_string();
    assert!(error.starts_with("kernels (shift) does not compile for sm_75:"), "{error}");

    take_prebuilt(&fixture);
}

/// Checks that the builder writes one PTX file per unit (part of the crate), and that an edit of one unit
/// recompiles only this unit.
fn units(fixture: &Fixture) {
    let builder = || fixture.builder().units(["scale", "shift"]);
    let read = |built: &Built, unit| fs::read_to_string(built.unit(Arch::Sm90, unit).unwrap()).unwrap();
    let built = builder().build().unwrap();
    for (unit, other) in [("scale", "shift"), ("shift", "scale")] {
        let ptx = read(&built, unit);
        assert!(
            ptx.contains(&format!(".entry {unit}(")) && !ptx.contains(&format!(".entry {other}(")),
            "{ptx}"
        );
        assert_eq!(ptx, fixture.copy(&format!("sm_90/{unit}.ptx")));
    }
    let [warning] = built.warnings() else { panic!("one warning, once: {:?}", built.warnings()) };
    assert!(warning.contains("`unused`") && warning.ends_with("kernels/src/shared.rs:3:9"), "{warning}");

    // Delete the folder with cargo's results for the unit (part of the crate) `scale`. If the builder ran
    // cargo for this unit, cargo would create the folder again.
    let cargos = fixture.path(&(fixture.build_folder() + "/sm_90/units/scale/nvptx64-nvidia-cuda"));
    fs::remove_dir_all(&cargos).unwrap();
    let files = ["out/sm_90/scale.ptx", "copy/device-kernels/sm_90/scale.ptx"];
    let times = fixture.times(files);
    fixture.write("kernels/src/shift.rs", &SHIFT.replace("1.0", "3.0"));
    let built = builder().build().unwrap();
    assert!(read(&built, "shift").contains("0f40400000"), "{}", read(&built, "shift"));
    assert_eq!(fixture.times(files), times, "an edit of the other unit");
    assert!(!cargos.exists(), "no process for a unit that did not change");
    assert_eq!(built.warnings().len(), 1, "warnings of such a unit are repeated");
    let inputs = ["scale", "shift"].map(|unit| fixture.path(&format!("kernels/src/{unit}.rs")));
    assert!(inputs.iter().all(|input| built.inputs().contains(input)), "{:?}", built.inputs());

    fixture.builder().units(["shift"]).build().unwrap();
    assert!(!fixture.path(files[1]).exists(), "the PTX of a unit that is gone");
    builder().build().unwrap();
}

fn check_texts(fixture: &Fixture, built: &Built) {
    for (arch, isa) in [(Arch::Sm75, "7.4"), (Arch::Sm90, "8.1")] {
        let ptx = text(built, arch);
        assert!(ptx.contains(&format!(".version {isa}\n.target {arch}\n")), "{ptx}");
        let (_, entry) = ptx.split_once(".visible .entry scale(").expect("the entry is there");
        let (head, body) = entry.split_once("\n{").expect("the entry has a body");
        assert!(head.ends_with("\n.maxntid 256, 1, 1\n.minnctapersm 4"), "{ptx}");
        assert!(body.contains(".loc") && !ptx.contains("//"), "{ptx}");
        assert!(ptx.contains("\"kernels/src/scale.rs\""), "{ptx}");
        assert!(!ptx.contains(&*fixture.0.to_string_lossy()) && !ptx.contains(".rustup"), "{ptx}");
        assert_eq!(ptx, fixture.copy(&format!("{arch}.ptx")));
    }
    for input in [
        "kernels/src/lib.rs",
        "kernels/src/scale.rs",
        "base/src/lib.rs",
        "base/Cargo.toml",
        "Cargo.toml",
        "Cargo.lock",
    ] {
        let path = fs::canonicalize(fixture.path(input)).unwrap();
        assert!(built.inputs().contains(&path), "{input} is not in {:?}", built.inputs());
    }
}

/// Checks that the builder links a function that is not in the crate's Rust dependencies. The test uses a
/// function of the crate `compiler_builtins`.
fn link(fixture: &Fixture) {
    let function = "unsafe extern \"C\" { fn __powisf2(x: f32, n: i32) -> f32; }";
    let shift = SHIFT.replace("+= 1.0", "= __powisf2(*x, 7)");
    fixture.write("kernels/src/shift.rs", &(shift + function));
    let built = fixture.builder().units(["scale", "shift"]).build().unwrap();
    let ptx = fs::read_to_string(built.unit(Arch::Sm75, "shift").unwrap()).unwrap();
    assert!(ptx.contains(".entry shift(") && !ptx.contains(".extern"), "{ptx}");
}

/// Checks that the builder uses prebuilt PTX.
///
/// The device crate does not compile at this point of the test, and the named toolchain does not exist. A
/// successful build therefore shows that the builder used only the prebuilt files.
fn take_prebuilt(fixture: &Fixture) {
    let builder = fixture.builder().toolchain("nightly-1999-12-31").out_dir(fixture.path("taken")).no_copy();
    let builder = builder.prebuilt(fixture.path("copy"));
    // All copied PTX files are older than the last edit of `shift.rs`. After this edit, `shift.rs` is invalid
    // Rust.
    let error = builder.clone().build().unwrap_err().to_string();
    let stale = "2 of 2 files are stale: device-kernels/sm_75.ptx was compiled before ";
    assert!(error.contains(stale) && error.contains("accept_stale(true)"), "{error}");
    let builder = builder.accept_stale(true);
    let taken = builder.clone().build().unwrap();
    assert_eq!(text(&taken, Arch::Sm90), fixture.copy("sm_90.ptx"));
    assert!(taken.warnings()[0].contains(stale), "{:?}", taken.warnings());
    let inputs =
        ["copy/device-kernels/sm_75.ptx", "copy/device-kernels/sm_90.ptx"].map(|name| fixture.path(name));
    assert!(inputs.iter().all(|input| taken.inputs().contains(input)), "{:?}", taken.inputs());
    let units = builder.clone().units(["scale", "shift"]).build().unwrap();
    let taken = units.unit(Arch::Sm75, "shift").map(|path| fs::read_to_string(path).unwrap());
    assert_eq!(taken.unwrap(), fixture.copy("sm_75/shift.ptx"));
    let error = builder.clone().units(["other"]).build().unwrap_err().to_string();
    assert!(error.contains("cannot read device-kernels/sm_75/other.ptx"), "{error}");
    let error = builder.arch(Arch::Sm120).build().unwrap_err().to_string();
    let folder = fixture.path("copy").display().to_string();
    let expected = format!("prebuilt PTX in {folder}: cannot read device-kernels/sm_120.ptx");
    assert!(error.starts_with(&expected), "{error}");
    let error = fixture.builder().prebuilt("relative").build().unwrap_err().to_string();
    assert!(error.contains("give an absolute path"), "{error}");
}
