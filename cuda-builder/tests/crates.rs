//! Tests several device crates (crates of GPU kernels) in one target folder, prebuilt PTX, and the arguments
//! of the nested cargo.
//!
//! The tests compile nothing, because a script replaces cargo. The script writes PTX with one entry. The name
//! of the entry is the text of the crate's `lib.rs`. If the crate is split into units, the name of the unit
//! follows. With the rustc argument `--cfg=one` or `--cfg=two`, the name is `one` or `two` instead.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;

use cuda_builder::{Arch, Built, CudaBuilder};

/// A script that replaces cargo. With `--cfg=one`, the script writes its PTX immediately, but exits 1.5
/// seconds later. Without a lock, a simultaneous build with `--cfg=two` would overwrite this PTX before the
/// build with `--cfg=one` reads it.
const CARGO: &str = r#"#!/bin/sh
case $* in *-Zbuild-std=core*)
    for file in "$@"; do case $file in */Cargo.toml) new=${file%/Cargo.toml} ;; esac; done
    echo >>"$new/../compilations"
    mkdir -p "$new/target/nvptx64-nvidia-cuda"
    touch "$new/target/nvptx64-nvidia-cuda/libcore.rlib"
    echo "{\"filenames\":[\"$new/target/nvptx64-nvidia-cuda/libcore.rlib\"]}"
    exit ;;
esac
echo "$@" >>calls
while [ $# -gt 0 ]; do
    case $1 in --target-dir) dir=$2 ;; --emit=asm=*) ptx=${1#--emit=asm=} ;; unit=*) unit=$(expr "$1" : 'unit="\(.*\)"') ;; esac
    shift
done
arch=${CARGO_ENCODED_RUSTFLAGS#*target-cpu=}
arch=$(expr "$arch" : '\(sm_[0-9]*\)')
entry=$(cat src/lib.rs)${unit:+_$unit}
case $CARGO_ENCODED_RUSTFLAGS in
*--cfg=one*) entry=one ;;
*--cfg=two*) entry=two; sleep 0.5 ;;
esac
results=$dir/nvptx64-nvidia-cuda/release
mkdir -p "$results"
printf '.version 7.4\n.target %s\n.address_size 64\n.visible .entry %s(\n)\n{\n\tret;\n}\n' $arch $entry >"$ptx"
echo "$ptx: $PWD/src/lib.rs" >"$results/k.d"
[ $entry != one ] || sleep 1.5
echo '{"target":{"kind":["cdylib"],"crate_types":["cdylib"],"name":"k"}}'
"#;

const TOOLCHAIN: &str = include_str!("../../rust-toolchain.toml");

/// Writes the script that replaces cargo to a file named `cargo`, and puts its folder first in `PATH`. Also
/// removes the variable `OXIWARP_LINE_INFO` from the environment.
static FAKE_CARGO: LazyLock<()> = LazyLock::new(|| {
    let bin = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake cargo");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("cargo"), CARGO).unwrap();
    fs::set_permissions(bin.join("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    // SAFETY: the lock of the standard library orders this write with reads by Rust code. No C code in this
    // test reads the environment.
    unsafe {
        std::env::set_var("PATH", path);
        std::env::remove_var("OXIWARP_LINE_INFO");
    }
});

/// A folder in the temporary folder that cargo provides for tests. It is empty at first.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        LazyLock::force(&FAKE_CARGO);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let folder = Folder(folder);
        // Write a `rust-toolchain.toml`, because cargo's folder for tests may be outside of the repository.
        // The repository's `rust-toolchain.toml` does not apply there.
        folder.write("rust-toolchain.toml", TOOLCHAIN);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Adds a device crate (a crate of GPU kernels). For this crate, the script that replaces cargo writes
    /// PTX with an entry named `entry`.
    fn add_crate(&self, folder: &str, package: &str, entry: &str) {
        self.write(
            &format!("{folder}/Cargo.toml"),
            &format!("[package]\nname = \"{package}\"\n[workspace]\n"),
        );
        self.write(&format!("{folder}/src/lib.rs"), entry);
        // Wait, because the builder records a compilation only if it starts later than the last change of the
        // sources.
        thread::sleep(std::time::Duration::from_millis(20));
    }

    /// Returns a builder for the crate in `folder`. All builders use the same target folder.
    fn builder(&self, folder: &str) -> CudaBuilder {
        let builder = CudaBuilder::new(self.path(folder)).arch(Arch::Sm80);
        builder.out_dir(self.path("out").join(folder)).target_dir(self.path("target"))
    }

    /// Returns how often the script that replaces cargo ran for the crate in `folder`.
    fn calls(&self, folder: &str) -> usize {
        self.read(&format!("{folder}/calls")).lines().count()
    }
}

fn has_entry(built: &Built, entry: &str) -> bool {
    let text = fs::read_to_string(&built.files()[0].path).unwrap();
    text.starts_with(".version") && text.contains(&format!(".entry {entry}("))
}

#[test]
fn crates_of_one_name_get_their_own_ptx() {
    let folder = Folder::new("one-name");
    folder.add_crate("a/kernels", "kernels", "alpha");
    folder.add_crate("b/kernels", "kernels", "beta");
    for _ in 0..2 {
        for (name, entry) in [("a/kernels", "alpha"), ("b/kernels", "beta")] {
            let built = folder.builder(name).build().unwrap();
            assert!(has_entry(&built, entry), "{name}");
            assert!(built.inputs().contains(&folder.path(name).join("src/lib.rs")), "{:?}", built.inputs());
        }
    }
    assert_eq!(["a/kernels", "b/kernels"].map(|name| folder.calls(name)), [1, 1]);
}

#[test]
fn core_is_compiled_once_for_all_crates_and_architectures() {
    let folder = Folder::new("core");
    for name in ["a", "b"] {
        folder.add_crate(name, name, "alpha");
        folder.builder(name).archs([Arch::Sm80, Arch::Sm90, Arch::Sm100]).build().unwrap();
    }
    assert_eq!(["a", "b"].map(|name| folder.calls(name)), [3, 3]);
    // A build with other flags and with line information uses the same `core`.
    folder.builder("a").rustc_arg("--cfg=two").line_info(true).build().unwrap();
    assert!(folder.calls("a") > 3);
    assert_eq!(folder.read("target/cuda-builder/sysroot/compilations").lines().count(), 1);
}

#[test]
fn builds_with_other_flags_at_the_same_time_get_their_own_ptx() {
    let folder = Folder::new("flags");
    folder.add_crate("kernels", "kernels", "alpha");
    let build = |flag: &str| {
        let builder = folder.builder("kernels").rustc_arg(format!("--cfg={flag}")).no_copy();
        has_entry(&builder.out_dir(folder.path(flag)).build().unwrap(), flag)
    };
    thread::scope(|scope| {
        let both = ["one", "two"].map(|flag| scope.spawn(move || build(flag)));
        for (thread, flag) in both.into_iter().zip(["one", "two"]) {
            assert!(thread.join().unwrap(), "--cfg={flag}");
        }
    });
    assert!(["one", "two"].into_iter().all(build), "later, from the record");
}

#[test]
fn copies_of_other_crates_and_other_files_stay() {
    let folder = Folder::new("copies");
    folder.add_crate("a", "alphas", "alpha");
    folder.add_crate("b", "betas", "beta");
    let a = |units: &[&str]| folder.builder("a").units(units.iter().copied());
    let b = || folder.builder("b").units(["x"]);
    a(&["x", "y"]).build().unwrap();
    folder.write("target/ptx/alphas/sm_80/mine.ptx", "// mine");
    b().build().unwrap();
    a(&["y"]).build().unwrap();
    assert!(!folder.path("target/ptx/alphas/sm_80/x.ptx").exists(), "this unit is gone");
    let copies = ["alphas/sm_80/y.ptx", "alphas/sm_80/mine.ptx", "betas/sm_80/x.ptx"];
    let read = || copies.map(|copy| folder.read(&format!("target/ptx/{copy}")));
    let before = read();

    let ptx = folder.path("target/ptx");
    let built = a(&["y"]).prebuilt(&ptx).build().unwrap();
    assert!(has_entry(&built, "alpha_y") && built.copies().is_empty());
    assert!(has_entry(&b().prebuilt(ptx.join("../ptx")).build().unwrap(), "beta_x"));
    assert_eq!(read(), before, "where copies are taken from, nothing is written or removed");
    assert_eq!(["a", "b"].map(|name| folder.calls(name)), [2, 1]);
}

#[test]
fn prebuilt_ptx_is_of_this_crate_and_of_its_sources() {
    let folder = Folder::new("prebuilt");
    folder.add_crate("a", "alphas", "alpha");
    folder.add_crate("b", "betas", "beta");
    let builder = || folder.builder("a").prebuilt(folder.path("prebuilt")).no_copy();
    let refused = |builder: CudaBuilder, expected: &str| {
        let error = builder.build().expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
        assert!(
            error.starts_with(&format!("prebuilt PTX in {}: ", folder.path("prebuilt").display())),
            "{error}"
        );
    };
    refused(builder(), "cannot read alphas/sm_80.ptx");

    for (name, package) in [("a", "alphas"), ("b", "betas")] {
        let builder = folder.builder(name).arch(Arch::Sm90).copy_to(folder.path("prebuilt"));
        let built = builder.build().unwrap();
        let copies = ["sm_80", "sm_90"].map(|arch| folder.path(&format!("prebuilt/{package}/{arch}.ptx")));
        assert_eq!(built.copies().iter().map(|copy| &copy.path).collect::<Vec<_>>(), copies.each_ref());
    }
    let good = folder.read("prebuilt/alphas/sm_80.ptx");
    assert!(has_entry(&builder().build().unwrap(), "alpha"));

    let put = |text: &str| folder.write("prebuilt/alphas/sm_80.ptx", text);
    put(".version 8.6\n.target sm_80\n.address_size 64\n");
    refused(builder(), "alphas/sm_80.ptx has no stamp of cuda-builder, expected PTX of alphas for sm_80");
    put(&folder.read("prebuilt/betas/sm_80.ptx"));
    refused(builder(), "alphas/sm_80.ptx is PTX of betas for sm_80, expected PTX of alphas for sm_80");
    put(&folder.read("prebuilt/alphas/sm_90.ptx"));
    refused(builder(), "alphas/sm_80.ptx is PTX of alphas for sm_90, expected PTX of alphas for sm_80");
    put(&good.replace(".target sm_80", ".target sm_100"));
    refused(builder(), "alphas/sm_80.ptx has .target sm_100, expected .target sm_80");
    put(good.split_once(".version").unwrap().0);
    refused(builder(), "alphas/sm_80.ptx has no .target, expected .target sm_80");
    put(&good.replace(".entry alpha(", ".entry alpha2("));
    refused(builder(), "1 of 1 files are stale: alphas/sm_80.ptx was edited after it was compiled\n");

    put(&good);
    refused(builder().rustc_arg("--cfg=one"), "expected PTX of alphas for sm_80, with --cfg=one");
    folder.write("a/src/lib.rs", "alpha ");
    refused(builder(), "stale: alphas/sm_80.ptx was compiled before src/lib.rs changed\n");
    folder.write("a/src/lib.rs", "alpha");
    let built = builder().build().unwrap();
    assert!(has_entry(&built, "alpha"), "the same source as before, whenever it was written");
    let inputs = ["prebuilt/alphas/sm_80.ptx", "a/src/lib.rs"].map(|name| folder.path(name));
    assert_eq!(built.inputs(), inputs, "a change of these runs the check again");
}

#[test]
fn settings_that_appear_reach_the_ptx() {
    let folder = Folder::new("settings");
    folder.add_crate("kernels", "kernels", "alpha");
    let build = || folder.builder("kernels").build().unwrap();
    let built = build();
    assert!(
        built.inputs().contains(&folder.path("kernels")),
        "cargo is to notice new files: {:?}",
        built.inputs()
    );
    build();
    assert_eq!(folder.calls("kernels"), 1);
    folder.write("kernels/.cargo/config.toml", "");
    build();
    assert_eq!(folder.calls("kernels"), 2, "the record is for other settings");
    folder.write(".cargo/config.toml", "");
    build();
    assert_eq!(folder.calls("kernels"), 3, "so it is with settings above the crate");

    folder.write("kernels/Cargo.lock", "");
    assert!(
        !build().inputs().contains(&folder.path("kernels")),
        "the root of a workspace has a target folder"
    );
}

/// Source of a build script. The build script prints `cargo:rerun-if-changed` for each path in the file
/// `inputs`. It also appends one byte to the file `runs`.
const BUILD_SCRIPT: &str = r#"
use std::io::Write;
fn main() {
    for input in std::fs::read_to_string("inputs").unwrap().lines() {
        println!("cargo:rerun-if-changed={input}");
    }
    let mut runs = std::fs::File::options().create(true).append(true).open("runs").unwrap();
    runs.write_all(b".").unwrap();
}
"#;

#[test]
fn settings_that_appear_run_the_build_script() {
    let folder = Folder::new("watched");
    folder.add_crate("kernels", "kernels", "alpha");
    for name in ["Cargo.lock", "kernels/.cargo/other", ".cargo/other"] {
        folder.write(name, "");
    }
    let manifest = "[package]\nname = \"host\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    folder.write("host/Cargo.toml", manifest);
    folder.write("host/src/lib.rs", "");
    folder.write("host/build.rs", BUILD_SCRIPT);
    let built = folder.builder("kernels").build().unwrap();
    let inputs: Vec<_> = built.inputs().iter().map(|input| input.display().to_string()).collect();
    folder.write("host/inputs", &inputs.join("\n"));
    // Runs the real cargo. Returns how often cargo has run the build script up to now.
    let runs = || {
        let mut cargo = std::process::Command::new(env!("CARGO"));
        cargo.args(["build", "--offline", "--quiet"]).current_dir(folder.path("host"));
        let output = cargo.env("CARGO_TARGET_DIR", folder.path("target/host")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder.read("host/runs").len()
    };
    assert_eq!([runs(), runs()], [1, 1], "nothing changed");
    let appearing = ["kernels/.cargo/config.toml", ".cargo/config.toml", "kernels/rust-toolchain.toml"];
    for (before, name) in appearing.into_iter().enumerate() {
        let text = if name.ends_with("rust-toolchain.toml") { TOOLCHAIN } else { "" };
        // Wait, so that the new file is younger than the last run of the build script. If the file's time
        // stamp equals the time of this run, cargo does not detect the file.
        thread::sleep(std::time::Duration::from_millis(1100));
        folder.write(name, text);
        assert_eq!([runs(), runs()], [before + 2; 2], "{name}");
    }
}

#[test]
fn the_lock_file_may_be_locked() {
    let folder = Folder::new("locked");
    folder.add_crate("kernels", "kernels", "alpha");
    folder.builder("kernels").units(["x"]).locked().build().unwrap();
    let calls = folder.read("kernels/calls");
    let (of_cargo, of_rustc) = calls.split_once(" -- ").expect("a unit has an argument for rustc");
    let is_locked = |arguments: &str| arguments.split(' ').any(|argument| argument == "--locked");
    assert!(is_locked(of_cargo) && !is_locked(of_rustc), "{calls}");
    folder.builder("kernels").units(["x"]).build().unwrap();
    assert_eq!(folder.calls("kernels"), 1, "the PTX is the same");
    folder.builder("kernels").build().unwrap();
    assert_eq!(folder.read("kernels/calls").matches("--locked").count(), 1, "only if asked for");
}
