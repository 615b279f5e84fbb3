//! Takes PTX from a folder into which an earlier build copied its PTX files.

use std::fs;
use std::path::Path;

use crate::cargo::Texts;
use crate::stamp::{Checker, Flaw};
use crate::{Arch, Error, PtxFile};

/// Reads the PTX files `files` in `folder` and checks their stamps. A stamp is the list of comments at the
/// start of a file: its label, and hashes of its text and its sources.
///
/// The label names the package, unit and architecture. The label of each file must equal the result of the
/// function `label`. In addition, neither the file nor the sources of the crate may have changed since the
/// file was compiled. If `accept_stale` is true, such a change causes only a warning.
pub(crate) fn take(
    folder: &Path,
    files: Vec<PtxFile>,
    label: impl Fn(Arch, Option<&str>) -> String,
    crate_dir: &Path,
    accept_stale: bool,
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
        if !accept_stale {
            return Err(wrong(said + REMEDY));
        }
        warnings.push(format!("prebuilt PTX in {}: {said}", folder.display()));
    }
    Ok(Texts { ptx, inputs, warnings })
}

/// End of the error message for stale files (PTX that was edited, or is older than its sources), with the
/// possible remedies.
const REMEDY: &str = "
The host may launch their kernels with other arguments than these expect. Compile the files again (the example `ptx` of
cuda-builder compiles some of them), or let the build script call accept_stale(true) to use the files as they are if your
edit changed no argument of a kernel.";
