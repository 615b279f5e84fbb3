//! Names the folder with this crate's `libcuda.so`, an empty linker script, to the linker.
//!
//! The build script of `cust` tells the linker to link `libcuda`. On a machine without the NVIDIA driver
//! there is no such library. This crate defines all symbols, so that the empty file is enough.
use std::env;
use std::path::Path;

fn main() {
    let package = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::rustc-link-search=native={}", Path::new(&package).join("link/lib64").display());
    println!("cargo::rerun-if-changed=build.rs");
}
