//! Runs the nested cargo, the second cargo that compiles device code. One run compiles a device crate, or one
//! unit (part) of the crate, for one architecture to one PTX file.
//!
//! rustc writes the PTX itself, after its link-time optimization. A linker is necessary only if the crate
//! calls functions of other objects, such as libdevice.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use std::{fs, thread};

use crate::record::{Compiled, Record};
use crate::{Arch, Error, arguments, comments, entry, files, scan, stamp, sysroot, toolchain};

/// Profile settings of the device crate, which are the same for all architectures.
///
/// Fat LTO and one codegen unit allow LLVM to inline all device code. Kernels are slow without this inlining.
const PROFILE: [&str; 7] = [
    "opt-level=3",
    "lto=\"fat\"",
    "codegen-units=1",
    "panic=\"abort\"",
    "debug-assertions=false",
    "overflow-checks=false",
    "incremental=false",
];

/// LLVM options for loop unrolling.
///
/// A thread keeps an array of packs (16-byte vectors) in registers. LLVM must completely unroll the loops
/// over this array, because an array with a variable index would be in local memory. With its default
/// threshold, LLVM unrolls only loops over a few packs.
///
/// The higher threshold also affects the unrolling of loops with a runtime trip count, and loop unswitching.
/// Each of these two optimizations produced kernels of a megabyte, so both optimizations are disabled.
const UNROLL: &str = "-Cllvm-args=-unroll-threshold=20000 -unroll-runtime=false -unswitch-threshold=0";

/// Runs LLVM's pipeline of optimization level 2 once more after each optimization run of rustc. Without this
/// option, six kernels spill registers.
const PASSES: &str = "-Cpasses=default<O2>";

/// Allows a device crate to use a `core` that was compiled for another architecture. By default, rustc
/// rejects this, because on some targets the calling convention depends on the architecture. On nvptx64, the
/// calling convention is the same for all architectures.
const ANY_CPU: &str = "-Cunsafe-allow-abi-mismatch=target-cpu";

const TARGET: &str = "nvptx64-nvidia-cuda";

/// The character between two flags in `CARGO_ENCODED_RUSTFLAGS`.
const SEPARATOR: &str = "\u{1f}";

/// Name of the PTX file that rustc writes.
const ASSEMBLY: &str = "rustc.ptx";

/// The only cargo argument that does not affect the PTX. If only this argument changes, nothing is compiled
/// again.
const LOCKED: &str = "--locked";

/// Functions that the CUDA driver provides. A PTX file only declares these functions.
const SYSTEM_CALLS: [&str; 5] = ["vprintf", "malloc", "free", "__assertfail", "cudaGetParameterBufferV2"];

/// Says whether rustc or the tool `llvm-bitcode-linker` writes the PTX.
#[derive(Clone, Copy, PartialEq)]
enum Linker {
    /// rustc writes the PTX of the crate and of its Rust dependencies itself, without a linker.
    Unused,
    /// The linker adds the crate `compiler_builtins` and the files that `-Clink-arg` names. The linker also
    /// optimizes the whole program once more.
    Used,
}

/// Settings for the compilation of a device crate, which are the same for all architectures.
pub(crate) struct Compilation<'a> {
    pub(crate) crate_dir: &'a Path,
    /// Name of the crate's package.
    pub(crate) package: &'a str,
    /// Folder for the results of this crate. It contains one folder per architecture.
    pub(crate) target_dir: &'a Path,
    /// Folder for intermediate files. It contains one folder per architecture. All device crates of a
    /// workspace use this folder, so that a common dependency is compiled once per architecture.
    pub(crate) build_dir: &'a Path,
    /// Folder for the compiled `core`.
    pub(crate) sysroots: &'a Path,
    pub(crate) toolchain: Option<&'a str>,
    /// Version of the compiler.
    pub(crate) rustc: &'a str,
    pub(crate) rustc_args: &'a [String],
    pub(crate) line_info: bool,
    /// Whether the nested cargo gets the flag `--locked`. With this flag, it must not change the lock file.
    pub(crate) locked: bool,
}

/// Result of one run of cargo.
struct Output {
    /// The PTX as the compiler wrote it.
    ptx: String,
    /// The list of the sources, in the format of Make.
    dep_info: String,
    /// Messages of the compiler.
    said: String,
}

/// Result of a whole build, with all architectures and units (parts of the crate).
pub(crate) struct Texts {
    /// PTX texts with stamps (comments with hashes at the start), ordered by architecture, then by unit (part
    /// of the crate).
    pub(crate) ptx: Vec<String>,
    /// Files on which the PTX depends.
    pub(crate) inputs: Vec<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

impl Compilation<'_> {
    /// Compiles every unit (part of the crate) for every architecture.
    ///
    /// The architectures are compiled in parallel, even if there are more architectures than processors. The
    /// units of one architecture are compiled one after another.
    pub(crate) fn run_all(&self, archs: &[Arch], units: &[Option<&str>]) -> Result<Texts, Error> {
        let run_units = |arch| units.iter().map(|&unit| self.run(arch, unit)).collect();
        let results: Vec<Result<Vec<Compiled>, Error>> = thread::scope(|scope| {
            let workers: Vec<_> = archs.iter().map(|&arch| scope.spawn(move || run_units(arch))).collect();
            workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
        });
        // Most inputs and warnings are the same for all units (parts of the crate) and architectures. The
        // sets remove the duplicates.
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

    /// Compiles a unit (part of the crate), or the whole crate, for one architecture. If no input has changed
    /// since the last build of this unit, returns the recorded result of that build.
    fn run(&self, arch: Arch, unit: Option<&str>) -> Result<Compiled, Error> {
        // cargo gives the result of every unit (part of the crate) the same file name, the name of the crate.
        // Each unit therefore has its own result folder.
        let arch_dir = self.target_dir.join(arch.name());
        let target_dir = unit.map_or(arch_dir.clone(), |unit| arch_dir.join("units").join(unit));
        let cargo = self.cargo(&target_dir, arch, unit, Linker::Unused);
        let args: Vec<_> = cargo.get_args().filter(|&argument| argument != LOCKED).collect();
        let settings = files::settings(self.crate_dir);
        let flags = self.rustflags(arch);
        let key =
            format!("{} {} {:?} {settings:?} {flags:?} {args:?}", self.rustc, finishing(), self.crate_dir);
        // Another build, with different rustc flags, writes to the same paths. The lock makes the other build
        // wait until this build has read and recorded its files.
        let _lock = files::lock(&arch_dir.join("lock"))?;
        let record = Record { file: &target_dir.join("record"), key };
        if let Some(kept) = record.load() {
            return Ok(kept);
        }
        let start = SystemTime::now();
        let mut built = self.compile(&target_dir, arch, unit, Linker::Unused)?;
        if !scan::undefined(&built.ptx, &SYSTEM_CALLS).is_empty() {
            built = self.compile(&target_dir, arch, unit, Linker::Used)?;
        }
        let Output { ptx, dep_info, said } = built;
        let text = self.finish(&ptx).map_err(|source| Error::Entry { arch, source })?;
        let sources = files::own_sources(files::dep_info(&dep_info));
        // The stamp, at the start of the PTX, is a list of hashes of the sources. It omits sources that a
        // build script generated, because they do not exist in a build that uses prebuilt PTX.
        let written: Vec<_> =
            sources.iter().filter(|path| !path.starts_with(self.build_dir)).cloned().collect();
        let label = stamp::label(self.package, unit, arch, self.rustc_args);
        let compiled = Compiled {
            ptx: stamp::add(&label, &text, self.crate_dir, &written, start),
            inputs: files::inputs(&sources, self.crate_dir),
            warnings: warnings(&said),
        };
        record.save(&compiled, start)?;
        Ok(compiled)
    }

    /// Runs cargo. Then reads the PTX that it built, and the paths of the source files of this PTX.
    fn compile(
        &self,
        target_dir: &Path,
        arch: Arch,
        unit: Option<&str>,
        linker: Linker,
    ) -> Result<Output, Error> {
        let mut flags = self.rustflags(arch);
        flags.extend([format!("--sysroot={}", self.sysroot()?.display()), ANY_CPU.to_string()]);
        let mut cargo = self.cargo(target_dir, arch, unit, linker);
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join(SEPARATOR));
        let output = cargo.output().map_err(Error::io("run", "cargo"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let library = library(&String::from_utf8_lossy(&output.stdout)).map(str::to_string);
        let Some(library) = library.filter(|_| output.status.success()) else {
            let device_crate = unit.map_or(self.name(), |unit| format!("{} ({unit})", self.name()));
            return Err(Error::Compile { device_crate, arch, output: said });
        };
        let results = target_dir.join(TARGET).join("release");
        let ptx = match linker {
            Linker::Unused => target_dir.join(ASSEMBLY),
            Linker::Used => results.join(&library).with_extension("ptx"),
        };
        let read = |path: &Path| fs::read_to_string(path).map_err(Error::io("read", path));
        Ok(Output { ptx: read(&ptx)?, dep_info: read(&results.join(library).with_extension("d"))?, said })
    }

    /// Returns the device crate's name for messages.
    pub(crate) fn name(&self) -> String {
        self.crate_dir.file_name().unwrap_or_default().to_string_lossy().into()
    }

    fn cargo(&self, target_dir: &Path, arch: Arch, unit: Option<&str>, linker: Linker) -> Command {
        let mut cargo = self.release("rustc", self.line_info);
        // Do not use the folder `build.build-dir` of the user's settings. If several workspaces share this
        // folder, cargo's lock in it also blocks unrelated builds.
        cargo.env("CARGO_BUILD_BUILD_DIR", self.build_dir.join(arch.name()));
        cargo.args(["--lib", "--crate-type=cdylib", "--target", TARGET]);
        // Features of host crates in the same workspace, such as `std`, must not be enabled in the device
        // crate.
        cargo.args(["-Zfeature-unification", "--config", "resolver.feature-unification=\"selected\""]);
        cargo.arg("--target-dir").arg(target_dir).args(self.locked.then_some(LOCKED));
        cargo.arg("--");
        if linker == Linker::Unused {
            cargo.args(["-Zno-link", &format!("--emit=asm={}", target_dir.join(ASSEMBLY).display())]);
        }
        if let Some(unit) = unit {
            // Allow dead code, because a unit (part of the crate) rarely uses all code that the units share.
            // Pass `--cfg unit` too, because `--cfg unit="name"` does not make `cfg(unit)` true.
            let unit = format!("unit=\"{unit}\"");
            let check = "--check-cfg=cfg(unit, values(any()))";
            cargo.args(["-Adead_code", check, "--cfg", "unit", "--cfg", &unit]);
        }
        cargo
    }

    /// Returns a command that runs the cargo subcommand `subcommand` with the profile of device code.
    fn release(&self, subcommand: &str, line_info: bool) -> Command {
        let mut cargo = toolchain::tool("cargo", self.crate_dir, self.toolchain);
        cargo.args([subcommand, "--release", "--message-format=json-render-diagnostics", "--color=never"]);
        // `line-tables-only` would write `.target …, debug`, which disables ptxas optimization.
        let debug = if line_info { "debug=\"line-directives-only\"" } else { "debug=false" };
        for setting in PROFILE.iter().chain([&debug]) {
            cargo.args(["--config", &format!("profile.release.{setting}")]);
        }
        cargo
    }

    /// Returns the folder of the compiled `core`. Compiles `core` first if necessary.
    ///
    /// `core` has no line information. A builder with line information therefore shares it, and LLVM gives
    /// inlined code of `core` the line of its call.
    fn sysroot(&self) -> Result<PathBuf, Error> {
        let mut cargo = self.release("build", false);
        let flags = [UNROLL, PASSES].join(SEPARATOR);
        cargo.env("CARGO_ENCODED_RUSTFLAGS", &flags);
        let key = format!("{} {flags} {:?}", self.rustc, cargo.get_args().collect::<Vec<_>>());
        sysroot::build(self.sysroots, &key, TARGET, cargo)
    }

    fn rustflags(&self, arch: Arch) -> Vec<String> {
        let mut flags = vec![
            format!("-Ctarget-cpu={arch}"),
            format!("-Ctarget-feature=+ptx{}", arch.ptx_isa()),
            UNROLL.to_string(),
            PASSES.to_string(),
        ];
        flags.extend_from_slice(self.rustc_args);
        flags
    }

    /// Post-processes the compiler's PTX. Writes launch bounds and parameter names, and removes comments and
    /// absolute paths.
    fn finish(&self, ptx: &str) -> Result<String, entry::EntryError> {
        let workspace = files::ancestor_with(self.crate_dir, "Cargo.lock");
        let text = comments::remove(&arguments::name(&entry::write_directives(ptx)?));
        Ok(files::relative_sources(&text, workspace.as_deref().unwrap_or(self.crate_dir)))
    }
}

/// Returns a hash of the source code of the post-processing. This hash is part of the key of each build
/// record. A change of the post-processing therefore invalidates all records.
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

/// Returns the name of the library that cargo compiled, from cargo's JSON messages.
fn library(messages: &str) -> Option<&str> {
    let head = "\"crate_types\":[\"cdylib\"],\"name\":\"";
    let name = &messages[messages.rfind(head)? + head.len()..];
    name.split('"').next()
}

/// Returns the first line of each warning of the device crate, followed by the source location of the
/// warning.
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
    fn the_library_is_found_in_cargos_messages() {
        let messages = "{\"target\":{\"kind\":[\"lib\"],\"crate_types\":[\"lib\"],\"name\":\"core\"}}\n\
            {\"target\":{\"kind\":[\"cdylib\"],\"crate_types\":[\"cdylib\"],\"name\":\"kernels\"},\"filenames\":[]}\n";
        assert_eq!(library(messages), Some("kernels"));
        assert_eq!(library("{\"reason\":\"build-finished\",\"success\":false}"), None);
    }

    #[test]
    fn warnings_have_a_place() {
        let said = "   Compiling k\nwarning: unused variable: `x`\n  --> src/lib.rs:4:9\n   |\nwarning: `k` (lib) generated 1 warning\n";
        assert_eq!(warnings(said), ["warning: unused variable: `x` --> src/lib.rs:4:9"]);
    }
}
