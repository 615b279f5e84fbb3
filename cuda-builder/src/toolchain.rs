//! Selects the toolchain that compiles device code, and checks that it is complete.
//!
//! The device crate's `rust-toolchain.toml` selects the toolchain. rustup searches for this file in its
//! working directory and in the parent folders. Without the check, each missing component would cause a
//! different error in cargo, rustc or the linker. The check instead reports one error, which contains the
//! command that installs the missing components.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use crate::{Error, env};

/// The rustup components that a PTX build needs. Each entry has the name of a component and the path of a
/// file in `lib/rustlib`. This file exists if the component is installed. `*` stands for the name of any
/// folder, such as the host's target triple.
const COMPONENTS: [(&str, &str); 3] = [
    ("rust-src", "src/rust/library/Cargo.lock"),
    ("llvm-bitcode-linker", "*/bin/self-contained/llvm-bitcode-linker"),
    ("llvm-tools", "*/bin/llc"),
];

/// Returns a command that runs the tool `name` (such as rustc) of the rustup toolchain `toolchain`, with the
/// working directory `folder`. If `toolchain` is `None`, rustup selects the toolchain for `folder`.
pub(crate) fn tool(name: &str, folder: &Path, toolchain: Option<&str>) -> Command {
    let mut command = Command::new(name);
    env::clean(&mut command);
    command.current_dir(folder).stdin(Stdio::null());
    if let Some(toolchain) = toolchain {
        command.env("RUSTUP_TOOLCHAIN", toolchain);
    }
    command
}

/// Checks that the toolchain can compile device code in `folder`, and returns the compiler's version in one
/// line.
///
/// The error contains the command that installs the missing toolchain or component.
pub(crate) fn check(folder: &Path, toolchain: Option<&str>) -> Result<String, Error> {
    let named = toolchain.map(str::to_string).or_else(|| channel(folder));
    let hint =
        if named.is_none() { "\nand name it in a rust-toolchain.toml beside the device crate" } else { "" };
    let channel = named.unwrap_or_else(|| "nightly".into());
    let missing = |what: String, details: String| Error::Toolchain {
        device_crate: folder.file_name().unwrap_or_default().to_string_lossy().into(),
        what,
        command: install(&channel) + hint,
        details,
    };
    // Pass a `-Z` option, which only a nightly rustc accepts. With a stable toolchain, this call therefore
    // fails.
    let output =
        match tool("rustc", folder, toolchain).args(["-Zunstable-options", "--print=sysroot"]).output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(missing("rustup (https://rustup.rs)".into(), String::new()));
            }
            output => output.map_err(Error::io("run", "rustc"))?,
        };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let reason = said.lines().find(|line| line.starts_with("error")).unwrap_or(said.trim());
        return Err(missing(format!("a nightly toolchain, {channel}"), format!("\nrustc says: {reason}")));
    }
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let absent = absent(&sysroot);
    if absent.is_empty() {
        let version =
            tool("rustc", folder, toolchain).arg("-vV").output().map_err(Error::io("run", "rustc"))?;
        return Ok(String::from_utf8_lossy(&version.stdout).lines().collect::<Vec<_>>().join(", "));
    }
    Err(missing(format!("the rustup component {} of {channel}", absent.join(", ")), String::new()))
}

fn install(channel: &str) -> String {
    let components = COMPONENTS.map(|(name, _)| format!(" -c {name}")).concat();
    format!("rustup toolchain install {channel}{components}")
}

/// Returns the components that this toolchain lacks.
fn absent(sysroot: &Path) -> Vec<&'static str> {
    let rustlib = sysroot.join("lib/rustlib");
    let triples: Vec<PathBuf> =
        fs::read_dir(&rustlib).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let here = |file: &str| match file.strip_prefix("*/") {
        Some(file) => triples.iter().any(|triple| triple.join(file).is_file()),
        None => rustlib.join(file).is_file(),
    };
    COMPONENTS.iter().filter(|(_, file)| !here(file)).map(|(name, _)| *name).collect()
}

/// Returns the channel (such as `nightly-2026-01-01`) in the nearest file `rust-toolchain` or
/// `rust-toolchain.toml`. In the old format, such a file contains only the name of the channel.
fn channel(folder: &Path) -> Option<String> {
    let names = ["rust-toolchain", "rust-toolchain.toml"];
    let mut files = folder.ancestors().flat_map(|folder| names.map(|name| folder.join(name)));
    let text = fs::read_to_string(files.find(|file| file.is_file())?).ok()?;
    let setting = text.lines().find_map(|line| line.trim_start().strip_prefix("channel"));
    match setting {
        Some(value) => value.split(['"', '\'']).nth(1).map(str::to_string),
        None => Some(text.trim().to_string()).filter(|text| !text.is_empty() && !text.contains(['[', '\n'])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    #[test]
    fn absent_components_are_named() {
        let sysroot = std::env::temp_dir().join(format!("cuda-builder-sysroot-{}", std::process::id()));
        let add = |file: &str| {
            let path = sysroot.join("lib/rustlib").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        assert_eq!(absent(&sysroot), ["rust-src", "llvm-bitcode-linker", "llvm-tools"]);
        add("src/rust/library/Cargo.lock");
        add("x86_64-unknown-linux-gnu/bin/llc");
        assert_eq!(absent(&sysroot), ["llvm-bitcode-linker"]);
        add("x86_64-unknown-linux-gnu/bin/self-contained/llvm-bitcode-linker");
        assert_eq!(absent(&sysroot), [""; 0]);
        fs::remove_dir_all(sysroot).unwrap();
    }

    #[test]
    fn the_error_gives_the_command() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let error = check(folder, Some("nightly-1999-12-31")).unwrap_err().to_string();
        let first =
            "building device code for cuda-builder needs a nightly toolchain, nightly-1999-12-31; run:\n  ";
        let command =
            "rustup toolchain install nightly-1999-12-31 -c rust-src -c llvm-bitcode-linker -c llvm-tools\n";
        assert!(error.starts_with(&[first, command].concat()), "{error}");
    }

    #[test]
    fn the_channel_is_read_from_the_toolchain_file() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(channel(workspace).is_some_and(|channel| channel.starts_with("nightly-")));
        let folder = std::env::temp_dir().join(format!("cuda-builder-channel-{}", std::process::id()));
        let (old, new) = (folder.join("rust-toolchain"), folder.join("rust-toolchain.toml"));
        let says = |file: &Path, text: &str| {
            files::write_if_changed(file, text).unwrap();
            channel(&folder)
        };
        assert_eq!(says(&new, "[toolchain]\n channel = 'nightly-2'\n").as_deref(), Some("nightly-2"));
        assert_eq!(says(&new, "[toolchain]\npath = \"/opt/rust\"\n"), None);
        assert_eq!(says(&old, "nightly-1\n").as_deref(), Some("nightly-1"), "rustup prefers this one");
        fs::remove_dir_all(folder).unwrap();
    }
}
