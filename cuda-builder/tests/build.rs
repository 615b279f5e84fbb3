//! A small device crate with a path dependency, through the whole builder.
//!
//! One test, because it sets environment variables. Cold it compiles `core` for two architectures (about
//! 20 s on two cores); the target folder stays, so that the next run takes a second or two.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cuda_builder::{Arch, Built, CudaBuilder, Error};

const KERNELS: &str = r#"#![no_std]
#![feature(abi_ptx, stdarch_nvptx)]
/// Doubles one number per thread.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn scale(x: *mut f32) {
    device_base::launch_bounds::<256, 4>();
    unsafe { *x.add(core::arch::nvptx::_thread_idx_x() as usize) *= 2.0 }
}
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

/// A workspace of two crates, `kernels` and `base`, in cargo's folder for this test.
struct Fixture(PathBuf);

impl Fixture {
    fn new() -> Fixture {
        let fixture = Fixture(Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-builder-test"));
        for folder in ["out", "copy", "taken"] {
            let _ = fs::remove_dir_all(fixture.path(folder));
        }
        let toolchain = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rust-toolchain.toml");
        fixture.write("rust-toolchain.toml", &fs::read_to_string(toolchain).unwrap());
        fixture.write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"kernels\", \"base\"]\n");
        let package =
            |name: &str| format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
        let dependency = "[dependencies]\ndevice-base = { path = \"../base\" }\n";
        fixture.write("kernels/Cargo.toml", &(package("device-kernels") + dependency));
        fixture.write("base/Cargo.toml", &package("device-base"));
        fixture.write("kernels/src/lib.rs", KERNELS);
        fixture.write("base/src/lib.rs", BASE);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
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

    /// When each output, and the PTX that cargo itself wrote, was last written.
    fn times(&self) -> Vec<SystemTime> {
        let cargos = "target/cuda-builder/kernels/sm_90/nvptx64-nvidia-cuda/release/device_kernels.ptx";
        let files = ["out/sm_75.ptx", "out/sm_90.ptx", "copy/sm_75.ptx", cargos];
        files.iter().map(|file| fs::metadata(self.path(file)).unwrap().modified().unwrap()).collect()
    }
}

fn text(built: &Built, arch: Arch) -> String {
    fs::read_to_string(built.ptx(arch).unwrap()).unwrap()
}

/// Sets a variable of this process.
fn set_var(name: &str, value: impl AsRef<std::ffi::OsStr>) {
    // SAFETY: this binary has one test; no other thread reads the environment meanwhile.
    unsafe { std::env::set_var(name, value) }
}

#[test]
fn from_device_crate_to_ptx() {
    let fixture = Fixture::new();
    // What `cargo clippy`, or a host that is built with flags of its own, would pass on.
    set_var("RUSTFLAGS", "--no-such-flag");
    set_var("RUSTC_WORKSPACE_WRAPPER", "/no/such/wrapper");
    set_var("CARGO_PROFILE_RELEASE_LTO", "off");

    let built = fixture.builder().build().unwrap();
    check_texts(&fixture, &built);
    let times = fixture.times();
    fixture.builder().build().unwrap();
    assert_eq!(fixture.times(), times, "nothing changed, so nothing was to be written");

    fixture.write("kernels/src/lib.rs", &KERNELS.replace("*= 2.0", "+= 3.0"));
    let edited = text(&fixture.builder().build().unwrap(), Arch::Sm90);
    assert!(edited.contains("0f40400000"), "an edit reaches the PTX: {edited}");
    fixture.write("base/src/lib.rs", &BASE.replace(".minnctapersm {}\"", ".maxnreg {}\""));
    let edited = text(&fixture.builder().build().unwrap(), Arch::Sm75);
    assert!(edited.contains("\n.maxnreg 4\n{"), "so does an edit of a path dependency: {edited}");

    fixture.write("kernels/src/lib.rs", &KERNELS.replace("x.add(", "y.add("));
    let error = fixture.builder().build().unwrap_err();
    assert!(matches!(error, Error::Compile { arch: Arch::Sm75, .. }), "{error}");
    let said = error.to_string();
    assert!(said.starts_with("kernels does not compile for sm_75:") && said.contains("`y`"), "{said}");

    take_prebuilt(&fixture);
}

fn check_texts(fixture: &Fixture, built: &Built) {
    for (arch, isa) in [(Arch::Sm75, "7.4"), (Arch::Sm90, "8.0")] {
        let ptx = text(built, arch);
        assert!(ptx.contains(&format!(".version {isa}\n.target {arch}\n")), "{ptx}");
        let (_, entry) = ptx.split_once(".visible .entry scale(").expect("the entry is there");
        let (head, body) = entry.split_once("\n{").expect("the entry has a body");
        assert!(head.ends_with("\n.maxntid 256, 1, 1\n.minnctapersm 4"), "{ptx}");
        assert!(body.contains(".loc") && !ptx.contains("//@entry"), "{ptx}");
        assert!(ptx.contains("\"kernels/src/lib.rs\""), "{ptx}");
        assert!(!ptx.contains(&*fixture.0.to_string_lossy()) && !ptx.contains(".rustup"), "{ptx}");
        let copy = fixture.path("copy").join(format!("{arch}.ptx"));
        assert_eq!(ptx, fs::read_to_string(copy).unwrap());
    }
    for input in ["kernels/src/lib.rs", "base/src/lib.rs", "base/Cargo.toml", "Cargo.lock"] {
        let path = fs::canonicalize(fixture.path(input)).unwrap();
        assert!(built.inputs().contains(&path), "{input} is not in {:?}", built.inputs());
    }
}

/// The device crate does not compile at this point: nothing but the files can be what is used.
fn take_prebuilt(fixture: &Fixture) {
    set_var("OXIWARP_PTX_DIR", fixture.path("copy"));
    let builder = fixture.builder().out_dir(fixture.path("taken")).no_copy();
    let taken = builder.clone().build().unwrap();
    assert_eq!(text(&taken, Arch::Sm90), fs::read_to_string(fixture.path("copy/sm_90.ptx")).unwrap());
    assert_eq!(taken.inputs(), [fixture.path("copy/sm_75.ptx"), fixture.path("copy/sm_90.ptx")]);
    let error = builder.arch(Arch::Sm120).build().unwrap_err().to_string();
    let expected = format!("OXIWARP_PTX_DIR={}: cannot read sm_120.ptx", fixture.path("copy").display());
    assert!(error.starts_with(&expected), "{error}");
    set_var("OXIWARP_PTX_DIR", "relative");
    let error = fixture.builder().build().unwrap_err().to_string();
    assert!(error.contains("give an absolute path"), "{error}");
}
