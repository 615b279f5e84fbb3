//! The nested cargo: a device crate or a unit of it, one architecture, one PTX.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use std::{fs, thread};

use crate::record::{Compiled, Record};
use crate::{Arch, Error, arguments, comments, entry, files, stamp, toolchain};

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
/// That threshold is not meant for loops whose length the launch decides, nor for copies of a loop for
/// each of its branches: both made kernels of a megabyte.
const UNROLL: &str = "-Cllvm-args=-unroll-threshold=20000 -unroll-runtime=false -unswitch-threshold=0";

/// The one argument that does not decide the PTX.
const LOCKED: &str = "--locked";

/// How to build a device crate, for any architecture.
pub(crate) struct Compilation<'a> {
    pub(crate) crate_dir: &'a Path,
    /// The name of its package.
    pub(crate) package: &'a str,
    /// Holds one build folder per architecture. No other crate has the same.
    pub(crate) target_dir: &'a Path,
    pub(crate) toolchain: Option<&'a str>,
    /// What the compiler says of itself.
    pub(crate) rustc: &'a str,
    pub(crate) rustc_args: &'a [String],
    pub(crate) line_info: bool,
    /// Whether the nested cargo must leave the lock file as it is.
    pub(crate) locked: bool,
}

/// A whole build: the PTX by architecture, then by unit.
pub(crate) struct Texts {
    /// With stamps.
    pub(crate) ptx: Vec<String>,
    /// Every file that went in.
    pub(crate) inputs: Vec<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

impl Compilation<'_> {
    /// Compiles every unit for every architecture: the units one after the other, the architectures at once. Three
    /// equal pieces on two processors take one and a half times as long as one; one per processor at a time, twice.
    pub(crate) fn run_all(&self, archs: &[Arch], units: &[Option<&str>]) -> Result<Texts, Error> {
        let run_units = |arch| units.iter().map(|&unit| self.run(arch, unit)).collect();
        let results: Vec<Result<Vec<Compiled>, Error>> = thread::scope(|scope| {
            let workers: Vec<_> = archs.iter().map(|&arch| scope.spawn(move || run_units(arch))).collect();
            workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
        });
        // Most inputs and warnings are those of every unit and architecture.
        let (mut ptx, mut inputs, mut warnings) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for result in results {
            for compiled in result? {
                ptx.push(compiled.ptx);
                inputs.extend(compiled.inputs);
                warnings.extend(compiled.warnings);
            }
        }
        let (inputs, warnings) = (inputs.into_iter().collect(), warnings.into_iter().collect());
        Ok(Texts { ptx, inputs, warnings })
    }

    /// Compiles a unit, or the whole crate, for one architecture; takes what the last build kept where nothing
    /// changed.
    fn run(&self, arch: Arch, unit: Option<&str>) -> Result<Compiled, Error> {
        // Units share the build of what they depend on, but not the folder of the result: cargo names it after the
        // crate, whatever the unit.
        let build_dir = self.target_dir.join(arch.name());
        let target_dir = unit.map_or(build_dir.clone(), |unit| build_dir.join("units").join(unit));
        let (mut cargo, flags) = (self.cargo(&target_dir, unit), self.rustflags(arch).join("\u{1f}"));
        let args: Vec<_> = cargo.get_args().filter(|&argument| argument != LOCKED).collect();
        let settings = files::settings(self.crate_dir);
        let key =
            format!("{} {} {:?} {settings:?} {flags:?} {args:?}", self.rustc, finishing(), self.crate_dir);
        // Builds with other flags write the same files: until these are read and kept, no other build may start.
        let _lock = files::lock(&build_dir.join("lock"))?;
        let record = Record { file: &target_dir.join("record"), key };
        if let Some(kept) = record.load() {
            return Ok(kept);
        }
        // A build folder that the user shares between workspaces would share its lock as well.
        cargo.env("CARGO_BUILD_BUILD_DIR", &build_dir).env("CARGO_ENCODED_RUSTFLAGS", flags);
        let start = SystemTime::now();
        let output = cargo.output().map_err(Error::io("run", "cargo"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let ptx = ptx_path(&String::from_utf8_lossy(&output.stdout));
        let Some(ptx) = ptx.filter(|_| output.status.success()) else {
            let device_crate = unit.map_or(self.name(), |unit| format!("{} ({unit})", self.name()));
            return Err(Error::Compile { device_crate, arch, output: said.into() });
        };
        let dep_info = ptx.with_extension("d");
        let sources = fs::read_to_string(&dep_info).map_err(Error::io("read", &dep_info))?;
        let text = fs::read_to_string(&ptx).map_err(Error::io("read", &ptx))?;
        let text = self.finish(&text).map_err(|source| Error::Entry { arch, source })?;
        let sources = files::own_sources(files::dep_info(&sources));
        // What a build script of the device crate wrote is not there where the PTX is taken.
        let written: Vec<_> =
            sources.iter().filter(|path| !path.starts_with(self.target_dir)).cloned().collect();
        let label = stamp::label(self.package, unit, arch, self.rustc_args);
        let compiled = Compiled {
            ptx: stamp::add(&label, &text, self.crate_dir, &written, start),
            inputs: files::inputs(&sources, self.crate_dir),
            warnings: warnings(&said),
        };
        record.save(&compiled, start)?;
        Ok(compiled)
    }

    /// The device crate's name in messages.
    pub(crate) fn name(&self) -> String {
        self.crate_dir.file_name().unwrap_or_default().to_string_lossy().into()
    }

    fn cargo(&self, target_dir: &Path, unit: Option<&str>) -> Command {
        let mut cargo = toolchain::tool("cargo", self.crate_dir, self.toolchain);
        cargo.args(["rustc", "--release", "--lib", "--crate-type=cdylib", "--target=nvptx64-nvidia-cuda"]);
        cargo.args(["-Zbuild-std=core", "--message-format=json-render-diagnostics", "--color=never"]);
        cargo.arg("--target-dir").arg(target_dir).args(self.locked.then_some(LOCKED));
        // Not `line-tables-only`: that writes `.target …, debug`, which turns ptxas' optimisation off.
        let debug = if self.line_info { "debug=\"line-directives-only\"" } else { "debug=false" };
        for setting in PROFILE.iter().chain([&debug]) {
            cargo.args(["--config", &format!("profile.release.{setting}")]);
        }
        if let Some(unit) = unit {
            // Dead code is allowed: a unit rarely uses all code that units share. `--cfg unit="name"` alone would not make
            // `cfg(unit)` true, so both are given.
            let unit = format!("unit=\"{unit}\"");
            let check = "--check-cfg=cfg(unit, values(any()))";
            cargo.args(["--", "-Adead_code", check, "--cfg", "unit", "--cfg", &unit]);
        }
        cargo
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

    /// The compiler's text, with launch bounds and arguments' names, without comments and folders of this machine.
    fn finish(&self, ptx: &str) -> Result<String, entry::EntryError> {
        let workspace = files::ancestor_with(self.crate_dir, "Cargo.lock");
        let text = comments::remove(&arguments::name(&entry::write_directives(ptx)?));
        Ok(files::relative_sources(&text, workspace.as_deref().unwrap_or(self.crate_dir)))
    }
}

/// A hash of the source that makes a record's text from the compiler's: what an older one made is not to be kept.
fn finishing() -> String {
    let sources = [
        include_str!("arguments.rs"),
        include_str!("comments.rs"),
        include_str!("entry.rs"),
        include_str!("files.rs"),
        include_str!("scan.rs"),
        include_str!("stamp.rs"),
    ];
    stamp::hash(sources.concat().as_bytes())
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
