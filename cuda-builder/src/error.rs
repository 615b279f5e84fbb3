//! What can go wrong between a device crate and its PTX.

use std::fmt;
use std::path::PathBuf;

use crate::Arch;

/// Why there is no PTX.
///
/// `Debug` prints the same text as `Display`, so that a build script may simply return it from `main`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No architecture was asked for.
    #[error("CudaBuilder: no architecture was given; call .arch(Arch::Sm80) at least once")]
    NoArch,
    /// The path given to `CudaBuilder::new` holds no crate.
    #[error("CudaBuilder: there is no device crate at {0}: it has no Cargo.toml")]
    NoCrate(PathBuf),
    /// A setting is missing because the builder does not run in a build script.
    #[error("CudaBuilder: {0} is not set; outside a build script call .out_dir() and .target_dir()")]
    NotABuildScript(&'static str),
    /// The toolchain or one of its components is missing.
    #[error("building device code for {device_crate} needs {what}; run:\n  {command}{details}")]
    Toolchain {
        /// Name of the device crate's folder.
        device_crate: String,
        /// What is missing.
        what: String,
        /// The command that installs it.
        command: String,
        /// What the tool itself said, if it did.
        details: String,
    },
    /// The device crate does not compile.
    #[error("{device_crate} does not compile for {arch}:\n{output}")]
    Compile {
        /// Name of the device crate's folder.
        device_crate: String,
        /// The architecture that failed first.
        arch: Arch,
        /// What the nested cargo printed.
        output: String,
    },
    /// A kernel's launch bounds cannot be written into its entry.
    #[error("{arch}: {source}")]
    Entry {
        /// The architecture whose PTX has the entry.
        arch: Arch,
        /// What is wrong with it.
        source: crate::entry::EntryError,
    },
    /// `OXIWARP_PTX_DIR` is not usable.
    #[error("OXIWARP_PTX_DIR={}: {reason}", .dir.display())]
    Prebuilt {
        /// Its value.
        dir: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file or a process could not be used.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// For `map_err`: an I/O error with what was tried, and on which path.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { action, path, source }
    }
}
