//! Reads prebuilt PTX from a folder (`OXIWARP_PTX_DIR`) that contains the copies of an earlier build.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::cargo::Texts;
use crate::stamp::{Checker, Flaw};
use crate::{Arch, Error, PtxFile};

/// Name of the environment variable that contains the path of the folder with prebuilt PTX.
pub(crate) const FOLDER: &str = "OXIWARP_PTX_DIR";

/// Name of the environment variable that allows stale PTX: files that were edited, or whose sources have
/// changed.
pub(crate) const STALE: &str = "OXIWARP_PTX_STALE";

/// Returns the folder in `OXIWARP_PTX_DIR`, if the variable is set and not empty.
pub(crate) fn folder() -> Option<PathBuf> {
    env::var_os(FOLDER).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Reads the PTX files `files` in `folder` and checks their stamps. A stamp is a block of comments at the
/// start of a PTX file, with hashes of its text and of its sources.
///
/// The first line of each file must be the label that `label` returns. It names the package, unit and
/// architecture. Each file must also be compiled from the current sources of the crate, unless
/// `OXIWARP_PTX_STALE=1`.
pub(crate) fn take(
    folder: &Path,
    files: Vec<PtxFile>,
    label: impl Fn(Arch, Option<&str>) -> String,
    crate_dir: &Path,
) -> Result<Texts, Error> {
    let wrong = |reason: String| Error::Prebuilt { dir: folder.into(), reason };
    if folder.is_relative() {
        return Err(wrong("give an absolute path: a build script runs in its package's folder".into()));
    }
    let (mut ptx, mut inputs, mut stale) = (Vec::new(), Vec::new(), Vec::new());
    let mut checker = Checker::new(crate_dir);
    for PtxFile { arch, unit, path } in files {
        let name = path.strip_prefix(folder).unwrap_or(&path).display();
        let missing =
            |error| wrong(format!("cannot read {name}: {error}; expected the layout of target/ptx"));
        let text = fs::read_to_string(&path).map_err(missing)?;
        match checker.check(&text, &label(arch, unit.as_deref()), arch) {
            Ok(()) => {}
            Err(Flaw::Wrong(reason)) => return Err(wrong(format!("{name} {reason}"))),
            Err(Flaw::Stale(reason)) => stale.push(format!("{name} {reason}")),
        }
        ptx.push(text);
        inputs.push(path);
    }
    inputs.extend(checker.sources());
    let mut warnings = Vec::new();
    if let Some(first) = stale.first() {
        let said = format!("{} of {} files are stale: {first}", stale.len(), ptx.len());
        if env::var_os(STALE).is_none_or(|value| value != "1") {
            return Err(wrong(said + REMEDY));
        }
        warnings.push(format!("{FOLDER}={}: {said}", folder.display()));
    }
    Ok(Texts { ptx, inputs, warnings })
}

/// End of the error message for stale files, with the possible remedies.
const REMEDY: &str = "
The host may launch their kernels with other arguments than these expect. Compile the files again (the example `ptx` of
cuda-builder compiles some of them), unset OXIWARP_PTX_DIR to compile all, or set OXIWARP_PTX_STALE=1 to use the files as
they are if your edit changed no argument of a kernel.";
