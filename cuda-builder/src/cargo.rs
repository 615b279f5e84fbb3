//! One run of the nested cargo: a device crate, one architecture, one PTX.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Arch, Error, files, toolchain};

/// What the device crate is built with, beyond the architecture.
///
/// One crate, one codegen unit: device code has no linker to speak of, and inlining everything is what
/// makes it fast.
const PROFILE: [&str; 7] = [
    "opt-level=3",
    "lto=\"fat\"",
    "codegen-units=1",
    "panic=\"abort\"",
    "debug-assertions=false",
    "overflow-checks=false",
    "incremental=false",
];

/// Loops over the packs that a thread holds must be unrolled entirely: an array that is indexed by a
/// loop variable lives in local memory, not in registers. LLVM's own threshold stops at a few packs.
const UNROLL: &str = "-Cllvm-args=-unroll-threshold=20000 -unroll-runtime=false -unswitch-threshold=0";

/// How to build a device crate, for any architecture.
pub(crate) struct Compilation<'a> {
    pub(crate) crate_dir: &'a Path,
    /// Holds one target folder per architecture.
    pub(crate) target_dir: &'a Path,
    pub(crate) toolchain: Option<&'a str>,
    pub(crate) rustc_args: &'a [String],
    pub(crate) line_info: bool,
}

/// What came out.
pub(crate) struct Compiled {
    pub(crate) ptx: String,
    /// Every source that went in.
    pub(crate) sources: Vec<PathBuf>,
    /// The compiler's warnings, each with its place.
    pub(crate) warnings: Vec<String>,
}

impl Compilation<'_> {
    /// Builds for one architecture; fast where nothing changed.
    pub(crate) fn run(&self, arch: Arch) -> Result<Compiled, Error> {
        let target_dir = self.target_dir.join(arch.name());
        let mut cargo = toolchain::tool("cargo", self.crate_dir, self.toolchain);
        cargo.args(["rustc", "--release", "--lib", "--crate-type=cdylib", "--target=nvptx64-nvidia-cuda"]);
        cargo.args(["-Zbuild-std=core", "--message-format=json-render-diagnostics", "--color=never"]);
        cargo.arg("--target-dir").arg(&target_dir);
        // Not `line-tables-only`: that writes `.target …, debug`, which turns ptxas' optimisation off.
        let debug = if self.line_info { "debug=\"line-directives-only\"" } else { "debug=false" };
        for setting in PROFILE.iter().chain([&debug]) {
            cargo.args(["--config", &format!("profile.release.{setting}")]);
        }
        // A build folder that the user shares between workspaces would share its lock as well.
        cargo.env("CARGO_BUILD_BUILD_DIR", &target_dir);
        cargo.env("CARGO_ENCODED_RUSTFLAGS", self.rustflags(arch).join("\u{1f}"));
        let output = cargo.output().map_err(Error::io("run", "cargo"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let ptx = ptx_path(&String::from_utf8_lossy(&output.stdout));
        let Some(ptx) = ptx.filter(|_| output.status.success()) else {
            return Err(Error::Compile { device_crate: self.name(), arch, output: said.into() });
        };
        let dep_info = ptx.with_extension("d");
        let sources = fs::read_to_string(&dep_info).map_err(Error::io("read", &dep_info))?;
        let text = fs::read_to_string(&ptx).map_err(Error::io("read", &ptx))?;
        Ok(Compiled { ptx: text, sources: files::dep_info(&sources), warnings: warnings(&said) })
    }

    /// The device crate's name in messages.
    pub(crate) fn name(&self) -> String {
        self.crate_dir.file_name().unwrap_or_default().to_string_lossy().into()
    }

    fn rustflags(&self, arch: Arch) -> Vec<String> {
        let mut flags = vec![
            format!("-Ctarget-cpu={arch}"),
            format!("-Ctarget-feature=+ptx{}", arch.ptx_isa()),
            UNROLL.to_string(),
        ];
        flags.extend_from_slice(self.rustc_args);
        flags
    }
}

/// The PTX file that cargo's messages name.
fn ptx_path(messages: &str) -> Option<PathBuf> {
    // A file name is a JSON string; paths with quotes or backslashes in them are not expected.
    let end = messages.rfind(".ptx\"")? + ".ptx".len();
    let start = messages[..end].rfind('"')? + 1;
    Some(PathBuf::from(&messages[start..end]))
}

/// The first line of each warning of the device crate, with the line that says where.
fn warnings(said: &str) -> Vec<String> {
    let lines: Vec<&str> = said.lines().collect();
    let place = |at: usize| lines.get(at + 1).filter(|next| next.trim_start().starts_with("-->"));
    let warning = |(at, line): (usize, &&str)| Some(format!("{line} {}", place(at)?.trim()));
    lines.iter().enumerate().filter(|(_, line)| line.starts_with("warning")).filter_map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ptx_is_found_in_cargos_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"filenames\":[\"/t/libcore.rlib\"]}\n\
            {\"reason\":\"compiler-artifact\",\"filenames\":[\"/t/a b/kernels.ptx\"],\"executable\":null}\n";
        assert_eq!(ptx_path(messages), Some(PathBuf::from("/t/a b/kernels.ptx")));
        assert_eq!(ptx_path("{\"reason\":\"build-finished\",\"success\":false}"), None);
    }

    #[test]
    fn warnings_have_a_place() {
        let said = "   Compiling k\nwarning: unused variable: `x`\n  --> src/lib.rs:4:9\n   |\nwarning: `k` (lib) generated 1 warning\n";
        assert_eq!(warnings(said), ["warning: unused variable: `x` --> src/lib.rs:4:9"]);
    }
}
