//! Result of a build.

use std::path::{Path, PathBuf};

use crate::Arch;

/// One PTX file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PtxFile {
    /// Architecture of the PTX.
    pub arch: Arch,
    /// The unit (part of the crate) that the file contains, or `None` if the file contains the whole crate.
    pub unit: Option<String>,
    /// Path of the file.
    pub path: PathBuf,
}

/// Result of [`CudaBuilder::build`](crate::CudaBuilder::build).
#[derive(Clone, Debug)]
pub struct Built {
    pub(crate) files: Vec<PtxFile>,
    pub(crate) copies: Vec<PtxFile>,
    pub(crate) inputs: Vec<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

impl Built {
    /// Returns the path of the PTX file for an architecture, if the file contains the whole crate. Returns
    /// `None` if the build was not for this architecture, or if the crate is split into units (one PTX file
    /// each).
    pub fn ptx(&self, arch: Arch) -> Option<&Path> {
        self.find(arch, None)
    }

    /// Returns the path of the PTX file of a unit (a part of the crate) for an architecture. Returns `None`
    /// if the build had no such unit or was not for this architecture.
    pub fn unit(&self, arch: Arch, unit: &str) -> Option<&Path> {
        self.find(arch, Some(unit))
    }

    /// Returns all PTX files, ordered by architecture, then by unit (part of the crate). Both orders are the
    /// orders in which the build script passed architectures and units to the builder.
    pub fn files(&self) -> &[PtxFile] {
        &self.files
    }

    /// Returns the copies of the PTX files, in the order of [`Built::files`]. A copy starts with comments
    /// that name the Rust sources of the PTX. A later build can use the copies as prebuilt PTX.
    ///
    /// The list is empty if [`no_copy`](crate::CudaBuilder::no_copy) disabled the copies. It is also empty if
    /// the build took prebuilt PTX from the same folder into which it would copy.
    pub fn copies(&self) -> &[PtxFile] {
        &self.copies
    }

    /// Returns the paths of files and folders on which the PTX depends. The builder has already printed
    /// `cargo:rerun-if-changed` for each of these paths.
    ///
    /// If a path is a folder, cargo detects new files in this folder.
    pub fn inputs(&self) -> &[PathBuf] {
        &self.inputs
    }

    /// Returns the warnings of the compiler without duplicates. After a build with stale prebuilt PTX (PTX
    /// older than its sources), returns one warning about the stale files.
    ///
    /// The builder has already printed `cargo:warning` for each of these warnings.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn find(&self, arch: Arch, unit: Option<&str>) -> Option<&Path> {
        let file = self.files.iter().find(|file| file.arch == arch && file.unit.as_deref() == unit)?;
        Some(&file.path)
    }
}
