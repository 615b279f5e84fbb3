//! The builder: settings, then all architectures side by side, then the files.

use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use crate::cargo::{Compilation, Compiled};
use crate::{Arch, Error, entry, files, toolchain};

/// The environment variable that replaces the build by files.
const PREBUILT: &str = "OXIWARP_PTX_DIR";

/// The environment variable that asks for line information.
const LINE_INFO: &str = "OXIWARP_LINE_INFO";

/// Builds a device crate to PTX; see the [crate's documentation](crate).
#[derive(Clone, Debug)]
#[must_use = "nothing happens before .build()"]
pub struct CudaBuilder {
    crate_dir: PathBuf,
    archs: Vec<Arch>,
    toolchain: Option<String>,
    rustc_args: Vec<String>,
    line_info: bool,
    out_dir: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    copy_to: Copy,
    prebuilt: Option<PathBuf>,
}

/// Where the PTX is copied for people to look at.
#[derive(Clone, Debug)]
enum Copy {
    TargetFolder,
    Nowhere,
    To(PathBuf),
}

/// What [`CudaBuilder::build`] made.
#[derive(Clone, Debug)]
pub struct Built {
    files: Vec<(Arch, PathBuf)>,
    inputs: Vec<PathBuf>,
}

impl Built {
    /// The PTX file of an architecture that was asked for.
    pub fn ptx(&self, arch: Arch) -> Option<&Path> {
        self.files.iter().find(|(of, _)| *of == arch).map(|(_, path)| path.as_path())
    }

    /// Every PTX file, in the order in which the architectures were given.
    pub fn files(&self) -> impl Iterator<Item = (Arch, &Path)> {
        self.files.iter().map(|(arch, path)| (*arch, path.as_path()))
    }

    /// The files on which the PTX depends: what `cargo:rerun-if-changed` was printed for.
    pub fn inputs(&self) -> &[PathBuf] {
        &self.inputs
    }
}

impl CudaBuilder {
    /// A builder for the device crate in this folder; a relative path starts at the package that the
    /// build script belongs to.
    pub fn new(crate_dir: impl Into<PathBuf>) -> CudaBuilder {
        CudaBuilder {
            crate_dir: crate_dir.into(),
            archs: Vec::new(),
            toolchain: None,
            rustc_args: Vec::new(),
            line_info: false,
            out_dir: None,
            target_dir: None,
            copy_to: Copy::TargetFolder,
            prebuilt: None,
        }
    }

    /// Adds an architecture.
    pub fn arch(self, arch: Arch) -> CudaBuilder {
        self.archs([arch])
    }

    /// Adds architectures.
    pub fn archs(mut self, archs: impl IntoIterator<Item = Arch>) -> CudaBuilder {
        for arch in archs {
            if !self.archs.contains(&arch) {
                self.archs.push(arch);
            }
        }
        self
    }

    /// Uses this rustup toolchain, not that of the device crate's `rust-toolchain.toml`.
    pub fn toolchain(mut self, name: impl Into<String>) -> CudaBuilder {
        self.toolchain = Some(name.into());
        self
    }

    /// Adds an argument for every rustc of the device build: `--cfg=…`, `-Clink-arg=…/libdevice.10.bc`.
    pub fn rustc_arg(mut self, arg: impl Into<String>) -> CudaBuilder {
        self.rustc_args.push(arg.into());
        self
    }

    /// Keeps `.loc` lines in the PTX, so that profilers and sanitizers show Rust sources; so does
    /// `OXIWARP_LINE_INFO=1`. Code and registers stay the same, but the text grows fivefold, and the driver
    /// reads it at a kernel's first launch: hence not by default.
    pub fn line_info(mut self, keep: bool) -> CudaBuilder {
        self.line_info = keep;
        self
    }

    /// Writes `<arch>.ptx` into this folder, not into `OUT_DIR`.
    pub fn out_dir(mut self, folder: impl Into<PathBuf>) -> CudaBuilder {
        self.out_dir = Some(folder.into());
        self
    }

    /// Keeps the nested cargo's work below this folder, not below the target folder of the host build.
    pub fn target_dir(mut self, folder: impl Into<PathBuf>) -> CudaBuilder {
        self.target_dir = Some(folder.into());
        self
    }

    /// Copies the PTX into this folder, not into `ptx` in the target folder.
    pub fn copy_to(mut self, folder: impl Into<PathBuf>) -> CudaBuilder {
        self.copy_to = Copy::To(folder.into());
        self
    }

    /// Copies the PTX nowhere.
    pub fn no_copy(mut self) -> CudaBuilder {
        self.copy_to = Copy::Nowhere;
        self
    }

    /// Takes `<arch>.ptx` from this folder, as `OXIWARP_PTX_DIR` does.
    pub fn prebuilt(mut self, folder: impl Into<PathBuf>) -> CudaBuilder {
        self.prebuilt = Some(folder.into());
        self
    }

    /// Builds, or takes, the PTX; writes `<arch>.ptx` and prints the `cargo:rerun-if` lines.
    pub fn build(self) -> Result<Built, Error> {
        if self.archs.is_empty() {
            return Err(Error::NoArch);
        }
        println!("cargo:rerun-if-env-changed={PREBUILT}");
        println!("cargo:rerun-if-env-changed={LINE_INFO}");
        let variable = env::var_os(PREBUILT).filter(|value| !value.is_empty()).map(PathBuf::from);
        let (texts, inputs) = match self.prebuilt.clone().or(variable) {
            Some(folder) => self.take(&folder)?,
            None => self.compile()?,
        };
        for input in &inputs {
            println!("cargo:rerun-if-changed={}", input.display());
        }
        let out_dir = self.out_dir.clone().or_else(|| env::var_os("OUT_DIR").map(PathBuf::from));
        let out_dir = out_dir.ok_or(Error::NotABuildScript("OUT_DIR"))?;
        let copy_to = match &self.copy_to {
            Copy::TargetFolder => Some(self.target()?.join("ptx")),
            Copy::Nowhere => None,
            Copy::To(folder) => Some(folder.clone()),
        };
        let mut files = Vec::new();
        for (&arch, text) in self.archs.iter().zip(texts) {
            let name = format!("{arch}.ptx");
            if let Some(folder) = &copy_to {
                files::write_if_changed(&folder.join(&name), &text)?;
            }
            let path = out_dir.join(name);
            files::write_if_changed(&path, &text)?;
            files.push((arch, path));
        }
        Ok(Built { files, inputs })
    }

    /// The texts of a folder of PTX files, and their paths.
    fn take(&self, folder: &Path) -> Result<(Vec<String>, Vec<PathBuf>), Error> {
        let wrong = |reason: String| Error::Prebuilt { dir: folder.into(), reason };
        if folder.is_relative() {
            return Err(wrong("give an absolute path: a build script runs in its package's folder".into()));
        }
        let paths: Vec<PathBuf> = self.archs.iter().map(|arch| folder.join(format!("{arch}.ptx"))).collect();
        let read = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().display();
            fs::read_to_string(path).map_err(|error| wrong(format!("cannot read {name}: {error}")))
        };
        Ok((paths.iter().map(read).collect::<Result<_, _>>()?, paths))
    }

    /// The texts that the nested cargo makes, and what they depend on.
    fn compile(&self) -> Result<(Vec<String>, Vec<PathBuf>), Error> {
        let found =
            fs::canonicalize(&self.crate_dir).ok().filter(|folder| folder.join("Cargo.toml").is_file());
        let crate_dir = found.ok_or_else(|| Error::NoCrate(self.crate_dir.clone()))?;
        toolchain::check(&crate_dir, self.toolchain.as_deref())?;
        let name = crate_dir.file_name().unwrap_or_default();
        let compilation = Compilation {
            crate_dir: &crate_dir,
            target_dir: &self.target()?.join("cuda-builder").join(name),
            toolchain: self.toolchain.as_deref(),
            rustc_args: &self.rustc_args,
            line_info: self.line_info || env::var_os(LINE_INFO).is_some_and(|value| value == "1"),
        };
        let results = in_parallel(&self.archs, |arch| compilation.run(arch));
        let workspace = files::ancestor_with(&crate_dir, "Cargo.lock").unwrap_or_else(|| crate_dir.clone());
        let (mut texts, mut sources) = (Vec::new(), Vec::new());
        for (&arch, result) in self.archs.iter().zip(results) {
            let compiled: Compiled = result?;
            if arch == self.archs[0] {
                let warn = |text: &String| println!("cargo:warning={} ({arch}): {text}", compilation.name());
                compiled.warnings.iter().for_each(warn);
            }
            let text =
                entry::write_directives(&compiled.ptx).map_err(|source| Error::Entry { arch, source })?;
            texts.push(files::relative_sources(&text, &workspace));
            sources.extend(compiled.sources);
        }
        Ok((texts, files::inputs(&sources, &crate_dir)))
    }

    /// The target folder of the outer build.
    fn target(&self) -> Result<PathBuf, Error> {
        if let Some(folder) = &self.target_dir {
            return Ok(folder.clone());
        }
        let out_dir = env::var_os("OUT_DIR").map(PathBuf::from).ok_or(Error::NotABuildScript("OUT_DIR"))?;
        let triple = env::var("TARGET").unwrap_or_default();
        Ok(files::target_folder(&out_dir, &triple).unwrap_or(out_dir))
    }
}

/// Applies `work` to every architecture at once. Three equal pieces on two processors take one and a half
/// times as long as one; one per processor at a time, twice as long.
fn in_parallel<T: Send>(archs: &[Arch], work: impl Fn(Arch) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let workers: Vec<_> = archs.iter().map(|&arch| scope.spawn(move || work(arch))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
    })
}
