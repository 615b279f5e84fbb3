//! The builder, which compiles a device crate for all architectures in parallel and writes the PTX files.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::cargo::{Compilation, Texts};
use crate::{Arch, Built, Error, PtxFile, files, prebuilt, stamp, toolchain};

/// Name of the environment variable that enables line information.
const LINE_INFO: &str = "OXIWARP_LINE_INFO";

/// Builds a device crate to PTX. The [crate's documentation](crate) describes the steps.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before .build()"]
pub struct CudaBuilder {
    crate_dir: PathBuf,
    archs: Vec<Arch>,
    units: Vec<String>,
    toolchain: Option<String>,
    rustc_args: Vec<String>,
    line_info: bool,
    locked: bool,
    out_dir: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    copy_to: Copy,
    prebuilt: Option<PathBuf>,
    accept_stale: bool,
}

/// Where the builder puts a second copy of the PTX, which users can read and reuse.
#[derive(Clone, Debug)]
enum Copy {
    TargetFolder,
    Nowhere,
    To(PathBuf),
}

impl CudaBuilder {
    /// Creates a builder for the device crate in the folder `crate_dir`. If this path is relative, it starts
    /// at the folder of the build script's package.
    pub fn new(crate_dir: impl Into<PathBuf>) -> CudaBuilder {
        CudaBuilder {
            crate_dir: crate_dir.into(),
            archs: Vec::new(),
            units: Vec::new(),
            toolchain: None,
            rustc_args: Vec::new(),
            line_info: false,
            locked: false,
            out_dir: None,
            target_dir: None,
            copy_to: Copy::TargetFolder,
            prebuilt: None,
            accept_stale: false,
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

    /// Splits the crate into units (parts). The builder compiles the crate once per unit, with
    /// `--cfg unit --cfg unit="<name>"`, into one PTX file per unit.
    ///
    /// After an edit, the builder compiles only the units that use a changed source file. Without units, the
    /// whole crate becomes one PTX file.
    ///
    /// In the device crate, mark a module that belongs to one unit with
    /// `#[cfg(any(not(unit), unit = "<name>"))]`. A build without units, for example a build for the host,
    /// then contains all modules.
    pub fn units(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> CudaBuilder {
        self.units.extend(names.into_iter().map(Into::into));
        self
    }

    /// Uses this rustup toolchain instead of the toolchain in the device crate's `rust-toolchain.toml`.
    pub fn toolchain(mut self, name: impl Into<String>) -> CudaBuilder {
        self.toolchain = Some(name.into());
        self
    }

    /// Adds an argument to every rustc call of the device build, such as `--cfg=…` or
    /// `-Clink-arg=…/libdevice.10.bc`.
    pub fn rustc_arg(mut self, arg: impl Into<String>) -> CudaBuilder {
        self.rustc_args.push(arg.into());
        self
    }

    /// Keeps `.loc` lines in the PTX, so that profilers and sanitizers show Rust sources.
    ///
    /// The environment variable `OXIWARP_LINE_INFO=1` has the same effect. A kernel's instructions and its
    /// number of registers do not change. However, the PTX becomes several times longer. The driver then
    /// needs more time to parse the PTX at the first launch of a kernel. Default: false.
    pub fn line_info(mut self, keep: bool) -> CudaBuilder {
        self.line_info = keep;
        self
    }

    /// Runs the nested cargo, which compiles the device code, with `--locked`. A missing or outdated lock
    /// file is then an error.
    ///
    /// If you pass `--locked`, `--frozen` or `--offline` to the outer cargo, the nested cargo does not get
    /// these flags. To build device code offline, set the environment variable `CARGO_NET_OFFLINE=true`.
    pub fn locked(mut self) -> CudaBuilder {
        self.locked = true;
        self
    }

    /// Writes the PTX to this folder instead of `OUT_DIR`.
    pub fn out_dir(mut self, folder: impl Into<PathBuf>) -> CudaBuilder {
        self.out_dir = Some(folder.into());
        self
    }

    /// Uses this target folder for the nested cargo, which compiles the device code, instead of the host
    /// build's target folder.
    pub fn target_dir(mut self, folder: impl Into<PathBuf>) -> CudaBuilder {
        self.target_dir = Some(folder.into());
        self
    }

    /// Copies the PTX to `<folder>/<package>` instead of `<target>/ptx/<package>`.
    ///
    /// If the crate is split into units, the builder also deletes old copies of units that no longer exist.
    /// It deletes only copies of this package and of the architectures of this build.
    pub fn copy_to(mut self, folder: impl Into<PathBuf>) -> CudaBuilder {
        self.copy_to = Copy::To(folder.into());
        self
    }

    /// Disables the copies of the PTX in `<target>/ptx`.
    pub fn no_copy(mut self) -> CudaBuilder {
        self.copy_to = Copy::Nowhere;
        self
    }

    /// Takes the PTX from this folder instead of compiling the crate. The folder is a copy of `<target>/ptx`,
    /// where an earlier build copied its PTX files.
    pub fn prebuilt(mut self, folder: impl Into<PathBuf>) -> CudaBuilder {
        self.prebuilt = Some(folder.into());
        self
    }

    /// Accepts prebuilt PTX that was edited, or whose sources have changed since it was compiled. The host
    /// must not launch a kernel whose arguments have changed since then. Default: false.
    pub fn accept_stale(mut self, accept: bool) -> CudaBuilder {
        self.accept_stale = accept;
        self
    }

    /// Compiles the PTX or takes prebuilt PTX, and writes the PTX files. Prints `cargo:rerun-if` lines, so
    /// that cargo runs the build script again after a change.
    ///
    /// A PTX file is named `<arch>.ptx`, or `<arch>/<unit>.ptx` if the crate is split into units.
    pub fn build(self) -> Result<Built, Error> {
        if self.archs.is_empty() {
            return Err(Error::NoArch);
        }
        println!("cargo:rerun-if-env-changed={LINE_INFO}");
        let out_dir = self.out_dir.clone().or_else(|| env::var_os("OUT_DIR").map(PathBuf::from));
        let out_dir = out_dir.ok_or(Error::NotABuildScript("OUT_DIR"))?;
        let found =
            fs::canonicalize(&self.crate_dir).ok().filter(|folder| folder.join("Cargo.toml").is_file());
        let crate_dir = found.ok_or_else(|| Error::NoCrate(self.crate_dir.clone()))?;
        let package = files::package(&crate_dir);
        let Texts { ptx, inputs, warnings } = match &self.prebuilt {
            Some(folder) => {
                let label = |arch, unit: Option<&str>| stamp::label(&package, unit, arch, &self.rustc_args);
                prebuilt::take(
                    folder,
                    self.files(&folder.join(&package)),
                    label,
                    &crate_dir,
                    self.accept_stale,
                )?
            }
            None => self.compile(&crate_dir, &package)?,
        };
        for input in &inputs {
            println!("cargo:rerun-if-changed={}", input.display());
        }
        for warning in &warnings {
            println!("cargo:warning={package}: {warning}");
        }
        let copy_to = match &self.copy_to {
            Copy::TargetFolder => Some(self.target()?.join("ptx")),
            Copy::Nowhere => None,
            Copy::To(folder) => Some(folder.clone()),
        };
        let is_source =
            |folder: &PathBuf| self.prebuilt.iter().any(|from| files::is_same_folder(from, folder));
        let copy_to = copy_to.filter(|folder| !is_source(folder));
        let copies = copy_to.map_or(Vec::new(), |folder| self.files(&folder.join(&package)));
        let files = self.files(&out_dir);
        for (file, text) in files.iter().zip(&ptx) {
            files::write_if_changed(&file.path, stamp::remove(text))?;
        }
        for (copy, text) in copies.iter().zip(&ptx) {
            files::write_if_changed(&copy.path, text)?;
        }
        if !self.units.is_empty() {
            stamp::remove_old_copies(&copies, &package);
        }
        Ok(Built { files, copies, inputs, warnings })
    }

    /// Returns the units (parts of the crate) to compile for each architecture. If there are no units, the
    /// list is one `None`, which stands for the whole crate.
    fn parts(&self) -> Vec<Option<&str>> {
        match &self.units[..] {
            [] => vec![None],
            units => units.iter().map(|unit| Some(unit.as_str())).collect(),
        }
    }

    /// Returns the PTX files that this build writes or reads in `folder`, ordered by architecture, then by
    /// unit.
    fn files(&self, folder: &Path) -> Vec<PtxFile> {
        let mut files = Vec::new();
        for &arch in &self.archs {
            for unit in self.parts() {
                let name = unit.map_or(format!("{arch}.ptx"), |unit| format!("{arch}/{unit}.ptx"));
                files.push(PtxFile { arch, unit: unit.map(str::to_string), path: folder.join(name) });
            }
        }
        files
    }

    /// Compiles the PTX with the nested cargo (for device code).
    fn compile(&self, crate_dir: &Path, package: &str) -> Result<Texts, Error> {
        let rustc = toolchain::check(crate_dir, self.toolchain.as_deref())?;
        // The name of a result folder contains a hash of the path of the crate or of the workspace. Crates
        // with the same name, or workspaces, therefore have separate result folders.
        let hash = |folder: &Path| stamp::hash(folder.as_os_str().as_encoded_bytes());
        let target = self.target()?;
        let folder = target.join("cuda-builder");
        let compilation = Compilation {
            crate_dir,
            package,
            target_dir: &folder.join(format!("{package}-{}", hash(crate_dir))),
            build_dir: &folder.join("build").join(hash(files::workspace(crate_dir))),
            sysroots: &folder.join("sysroot"),
            toolchain: self.toolchain.as_deref(),
            rustc: &rustc,
            rustc_args: &self.rustc_args,
            line_info: self.line_info || env::var_os(LINE_INFO).is_some_and(|value| value == "1"),
            locked: self.locked,
        };
        let mut built = compilation.run_all(&self.archs, &self.parts())?;
        // The build script must run again if someone creates a settings file. `cargo:rerun-if-changed` with a
        // file that does not exist would run the build script at every build. Therefore the builder names
        // folders, and cargo watches everything in them. The builder does not name the crate's folder if this
        // folder contains the target folder, which changes during every build. The builder also does not name
        // the crate's folder if this folder contains a lock file. Such a folder is a workspace root, which
        // usually contains the target folder.
        built.inputs.extend(files::settings_folders(crate_dir));
        if !crate_dir.join("Cargo.lock").exists() && !target.starts_with(crate_dir) {
            built.inputs.push(crate_dir.into());
        }
        Ok(built)
    }

    /// Returns the folder in `target_dir` if it was set. Otherwise returns the target folder of the outer
    /// cargo.
    fn target(&self) -> Result<PathBuf, Error> {
        if let Some(folder) = &self.target_dir {
            return Ok(folder.clone());
        }
        let out_dir = env::var_os("OUT_DIR").map(PathBuf::from).ok_or(Error::NotABuildScript("OUT_DIR"))?;
        let triple = env::var("TARGET").unwrap_or_default();
        Ok(files::target_folder(&out_dir, &triple).unwrap_or(out_dir))
    }
}
