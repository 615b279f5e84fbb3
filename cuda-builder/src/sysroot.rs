//! The compiled `core` for device code. All architectures and all device crates of a target folder share it.
//!
//! `core` has no code that depends on the architecture, and its functions are inlined into the device crate.
//! Therefore `core` is compiled once, for rustc's default architecture. For oxiwarp's kernels, the PTX is the
//! same as with a separate `core` for each architecture.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, files, stamp};

/// The crate that cargo builds in order to build `core`.
const MANIFEST: &str =
    "[package]\nname = \"sysroot\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n";

/// Returns a folder for rustc's option `--sysroot`, which contains `core` for `target`. Compiles `core` if no
/// earlier build with the same `key` did.
///
/// `cargo` is a command with the environment and the profile of device code. `key` names everything that
/// affects the compiled `core`, for example the compiler version.
pub(crate) fn build(folder: &Path, key: &str, target: &str, mut cargo: Command) -> Result<PathBuf, Error> {
    let sysroot = folder.join(stamp::hash(key.as_bytes()));
    // Builds for several architectures need the folder at the same time. One of these builds creates the
    // folder, and the others wait for it.
    let _lock = files::lock(&sysroot.with_extension("lock"))?;
    if sysroot.exists() {
        return Ok(sysroot);
    }
    let (new, work) = (sysroot.with_extension("new"), sysroot.with_extension("work"));
    let libraries = new.join("lib/rustlib").join(target).join("lib");
    fs::create_dir_all(&libraries).map_err(Error::io("create the folder", &libraries))?;
    files::write_if_changed(&work.join("Cargo.toml"), MANIFEST)?;
    files::write_if_changed(&work.join("lib.rs"), "#![no_std]\n")?;
    cargo.args(["-Zbuild-std=core", "--target", target, "--manifest-path"]).arg(work.join("Cargo.toml"));
    cargo.env("CARGO_BUILD_BUILD_DIR", work.join("build")).arg("--target-dir").arg(work.join("target"));
    let output = cargo.output().map_err(Error::io("run", "cargo"))?;
    let files: Vec<_> = libraries_of(&String::from_utf8_lossy(&output.stdout), target);
    if !output.status.success() || files.is_empty() {
        return Err(Error::Core(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    for file in &files {
        let name = file.file_name().expect("cargo names a file");
        fs::copy(file, libraries.join(name)).map_err(Error::io("copy", file))?;
    }
    fs::remove_dir_all(&work).map_err(Error::io("remove", &work))?;
    fs::rename(&new, &sysroot).map_err(Error::io("write", &sysroot))?;
    Ok(sysroot)
}

/// Returns the libraries for `target` that cargo's JSON messages name: files of code (`.rlib`) and of
/// interfaces (`.rmeta`). The libraries of the crate `sysroot` are omitted.
fn libraries_of(messages: &str, target: &str) -> Vec<PathBuf> {
    let lists = messages.split("\"filenames\":[").skip(1).filter_map(|rest| rest.split(']').next());
    let files = lists.flat_map(|list| list.split(',')).map(|file| PathBuf::from(file.trim_matches('"')));
    let is_library = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let is_device = file.components().any(|folder| folder.as_os_str() == target);
        is_device && !name.starts_with("libsysroot") && (name.ends_with(".rlib") || name.ends_with(".rmeta"))
    };
    files.filter(is_library).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_cargos_messages() {
        let messages = "{\"filenames\":[\"/t/nvptx/release/libcore-1.rlib\",\"/t/nvptx/release/libcore-1.rmeta\"]}\n\
            {\"filenames\":[\"/t/release/build-script-build\"]}\n\
            {\"filenames\":[\"/t/nvptx/release/libsysroot.rlib\"]}\n";
        let names =
            ["/t/nvptx/release/libcore-1.rlib", "/t/nvptx/release/libcore-1.rmeta"].map(PathBuf::from);
        assert_eq!(libraries_of(messages, "nvptx"), names);
    }
}
