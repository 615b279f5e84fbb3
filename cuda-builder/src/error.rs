//! Errors of a device build.

use std::fmt;
use std::path::PathBuf;

use crate::Arch;

/// Error of a device build (a build of GPU kernels).
///
/// `Debug` prints the same text as `Display`, so a build script can return the error from `main`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The builder has no architecture.
    #[error("CudaBuilder: no architecture was given; call .arch(Arch::Sm80) at least once")]
    NoArch,
    /// The path that was passed to `CudaBuilder::new` contains no crate.
    #[error("CudaBuilder: there is no device crate at {0}: it has no Cargo.toml")]
    NoCrate(PathBuf),
    /// An environment variable that cargo sets for build scripts is missing. The builder does not run in a
    /// build script.
    #[error("CudaBuilder: {0} is not set; outside a build script call .out_dir() and .target_dir()")]
    NotABuildScript(&'static str),
    /// The toolchain or one of its components is missing.
    #[error("building device code for {device_crate} needs {what}; run:\n  {command}{details}")]
    Toolchain {
        /// Name of the device crate's folder.
        device_crate: String,
        /// The missing toolchain or component.
        what: String,
        /// The command that installs it.
        command: String,
        /// Output of the failed tool, or an empty text if the tool printed nothing.
        details: String,
    },
    /// The device crate does not compile.
    #[error("{device_crate} does not compile for {arch}:\n{output}")]
    Compile {
        /// Name of the device crate's folder.
        device_crate: String,
        /// The architecture for which the compilation failed. If the compilation failed for several
        /// architectures, this field names the first of them in the builder's list.
        arch: Arch,
        /// Output of the nested cargo, which compiles the device crate.
        output: String,
    },
    /// `core` does not compile for the GPU.
    #[error("core does not compile for the GPU:\n{0}")]
    Core(String),
    /// The launch bounds that a kernel declares cannot be written to its PTX entry.
    #[error("{arch}: {source}")]
    Entry {
        /// The architecture whose PTX contains the entry.
        arch: Arch,
        /// Reason why the launch bounds cannot be written.
        source: crate::entry::EntryError,
    },
    /// The folder that was passed to `CudaBuilder::prebuilt` is not usable.
    #[error("prebuilt PTX in {}: {reason}", .dir.display())]
    Prebuilt {
        /// The folder.
        dir: PathBuf,
        /// Reason why the folder is not usable.
        reason: String,
    },
    /// An operation on a file failed, or a process could not be started.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// The operation that failed, such as "read".
        action: &'static str,
        /// Path of the file or process.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Returns a function for `map_err` that adds the action and the path to an I/O error.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { action, path, source }
    }
}
