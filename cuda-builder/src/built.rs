//! What a build made.

use std::path::{Path, PathBuf};

use crate::Arch;

/// One PTX file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PtxFile {
    /// The architecture that it is for.
    pub arch: Arch,
    /// The unit that it holds; `None`: the whole crate.
    pub unit: Option<String>,
    /// Where it is.
    pub path: PathBuf,
}

/// What [`CudaBuilder::build`](crate::CudaBuilder::build) made.
#[derive(Clone, Debug)]
pub struct Built {
    pub(crate) files: Vec<PtxFile>,
    pub(crate) copies: Vec<PtxFile>,
    pub(crate) inputs: Vec<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

impl Built {
    /// The whole crate's PTX for an architecture that was asked for.
    pub fn ptx(&self, arch: Arch) -> Option<&Path> {
        self.find(arch, None)
    }

    /// A unit's PTX for an architecture that was asked for.
    pub fn unit(&self, arch: Arch, unit: &str) -> Option<&Path> {
        self.find(arch, Some(unit))
    }

    /// Every PTX file: by architecture, then by unit, in the order in which they were given.
    pub fn files(&self) -> &[PtxFile] {
        &self.files
    }

    /// The copies of these files, in the same order. A copy starts with comments: what it was compiled from. There are
    /// none if [`no_copy`](crate::CudaBuilder::no_copy) was called, or if the PTX was taken from the folder of the copies.
    pub fn copies(&self) -> &[PtxFile] {
        &self.copies
    }

    /// The files on which the PTX depends: what `cargo:rerun-if-changed` was printed for. The folder of the device crate
    /// is one of them if cargo is to notice new files there.
    pub fn inputs(&self) -> &[PathBuf] {
        &self.inputs
    }

    /// What the compiler warned of, each once, or that prebuilt PTX is stale: what `cargo:warning` was printed for.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn find(&self, arch: Arch, unit: Option<&str>) -> Option<&Path> {
        let file = self.files.iter().find(|file| file.arch == arch && file.unit.as_deref() == unit)?;
        Some(&file.path)
    }
}
