//! A record file for each compiled unit (part of the device crate), with the PTX and the unit's inputs. If
//! the inputs have not changed, the builder reads the PTX from the record and does not start cargo.
//!
//! cargo also detects unchanged inputs, but each unit and architecture needs its own cargo process. With many
//! units, these processes would take longer than the compilation of one changed unit.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fmt::Write, fs};

use crate::{Error, files};

/// Result of a compilation.
pub(crate) struct Compiled {
    /// The PTX text with its stamp (comments with hashes at the start).
    pub(crate) ptx: String,
    /// Files on which the PTX depends, without the toolchain's files.
    pub(crate) inputs: Vec<PathBuf>,
    /// Warnings of the compiler, each with its source location.
    pub(crate) warnings: Vec<String>,
}

/// A file that stores the result of compiling one unit for one architecture.
///
/// The first lines of the file are the key, the inputs with their modification times, and the warnings. An
/// empty line and the PTX follow.
pub(crate) struct Record<'a> {
    pub(crate) file: &'a Path,
    /// One line of text with everything except the input files that affects the PTX, for example the compiler
    /// version and its arguments.
    pub(crate) key: String,
}

impl Record<'_> {
    /// Returns the recorded result if the recorded key equals `self.key` and no input has changed since the
    /// recorded compilation.
    pub(crate) fn load(&self) -> Option<Compiled> {
        let text = fs::read_to_string(self.file).ok()?;
        let (head, ptx) = text.split_once("\n\n")?;
        let list = head.strip_prefix(&self.key)?.strip_prefix('\n')?;
        let (mut inputs, mut warnings) = (Vec::new(), Vec::new());
        for line in list.lines() {
            match line.split_once(' ')? {
                ("warning", warning) => warnings.push(warning.into()),
                (time, path) if modified(path.as_ref())?.to_string() == time => inputs.push(path.into()),
                _ => return None,
            }
        }
        Some(Compiled { ptx: ptx.into(), inputs, warnings })
    }

    /// Records the result of a compilation that started at `start`.
    ///
    /// If an input file changed after `start`, the compiler may have read the old or the new version of the
    /// file. The function then records nothing, so that the next build runs cargo again.
    pub(crate) fn save(&self, compiled: &Compiled, start: SystemTime) -> Result<(), Error> {
        let mut text = format!("{}\n", self.key);
        for input in &compiled.inputs {
            match modified(input) {
                Some(time) if time < nanoseconds(start) => {
                    let _ = writeln!(text, "{time} {}", input.display());
                }
                _ => return Ok(()),
            }
        }
        for warning in &compiled.warnings {
            let _ = writeln!(text, "warning {warning}");
        }
        files::write_if_changed(self.file, &(text + "\n" + &compiled.ptx))
    }
}

/// Returns whether the file was last written before `time`.
pub(crate) fn is_older(path: &Path, time: SystemTime) -> bool {
    modified(path).is_some_and(|written| written < nanoseconds(time))
}

/// Returns the modification time of a file in nanoseconds since the Unix epoch.
fn modified(path: &Path) -> Option<u128> {
    fs::metadata(path).and_then(|data| data.modified()).ok().map(nanoseconds)
}

fn nanoseconds(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_record_holds_until_something_changes() {
        let folder = std::env::temp_dir().join(format!("cuda-builder-record-{}", std::process::id()));
        let (file, input) = (folder.join("record"), folder.join("a b.rs"));
        files::write_if_changed(&input, "1").unwrap();
        let compiled = Compiled {
            ptx: ".version 8.0\n\n.target sm_90\n".into(),
            inputs: vec![input.clone()],
            warnings: vec!["warning: unused --> a b.rs:1:1".into()],
        };
        let record = Record { file: &file, key: "rustc 1 --release".into() };
        let later = SystemTime::now() + Duration::from_secs(1);
        record.save(&compiled, later - Duration::from_secs(100)).unwrap();
        assert!(record.load().is_none(), "its input changed while it was compiled");

        record.save(&compiled, later).unwrap();
        let kept = record.load().expect("nothing changed");
        assert_eq!(
            (kept.ptx, kept.inputs, kept.warnings),
            (compiled.ptx, compiled.inputs, compiled.warnings)
        );
        assert!(Record { file: &file, key: "rustc 1".into() }.load().is_none(), "another key");

        fs::File::open(&input).unwrap().set_modified(later).unwrap();
        assert!(record.load().is_none(), "the input changed");
        fs::remove_file(&input).unwrap();
        assert!(record.load().is_none(), "the input is gone");
        fs::remove_dir_all(folder).unwrap();
    }
}
