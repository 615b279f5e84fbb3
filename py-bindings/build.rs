//! If zig is the linker, makes the shared object use the stack unwinder of the system's `libgcc_s.so.1`.
//!
//! By default, zig links a static copy of its own unwinder. libtorch uses the unwinder of the system. If
//! libtorch throws an exception that passes through Rust frames, both unwinders process it, and the process
//! crashes. To prevent this, the build script makes a stub library with the name and the symbols of
//! `libgcc_s.so.1`. It links the shared object with the stub. At run time, the dynamic loader then loads the
//! system's library instead. In a cross build, the build machine needs no `libgcc_s.so.1` of the target.
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// Functions of the unwinder: those that Rust's standard library calls, and further functions that are needed
/// together with them.
const SYMBOLS: [&str; 17] = [
    "_Unwind_Backtrace",
    "_Unwind_DeleteException",
    "_Unwind_FindEnclosingFunction",
    "_Unwind_ForcedUnwind",
    "_Unwind_GetCFA",
    "_Unwind_GetDataRelBase",
    "_Unwind_GetGR",
    "_Unwind_GetIP",
    "_Unwind_GetIPInfo",
    "_Unwind_GetLanguageSpecificData",
    "_Unwind_GetRegionStart",
    "_Unwind_GetTextRelBase",
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_SetGR",
    "_Unwind_SetIP",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let linker = env::var("RUSTC_LINKER").unwrap_or_default();
    if !linker.contains("zigcc") {
        return;
    }
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let (source, library) = (folder.join("libgcc_s.c"), folder.join("libgcc_s.so.1"));
    let functions: String = SYMBOLS.iter().map(|name| format!("void {name}(void) {{}}\n")).collect();
    fs::write(&source, functions).expect("cargo made the folder");
    let status = Command::new(&linker)
        .args(["-shared", "-nostdlib", "-Wl,-soname,libgcc_s.so.1", "-o"])
        .args([&library, &source])
        .status()
        .unwrap_or_else(|error| panic!("{linker}: {error}"));
    assert!(status.success(), "{linker}: {status}");
    println!("cargo::rustc-link-arg-cdylib={}", library.display());
}
