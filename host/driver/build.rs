//! Tells the linker to search for libraries in a folder of this crate. The folder contains a file
//! `libcuda.so`, which is an empty linker script.
//!
//! The crate `cust` is a Rust interface to the CUDA driver. Its build script tells the linker to link
//! `libcuda`. A machine without the NVIDIA driver has no such library. The present crate defines all symbols
//! of `libcuda` that `cust` needs. The linker needs nothing from the file `libcuda.so`, so an empty file is
//! enough.
use std::env;
use std::path::Path;

fn main() {
    let package = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::rustc-link-search=native={}", Path::new(&package).join("link/lib64").display());
    println!("cargo::rerun-if-changed=build.rs");
}
