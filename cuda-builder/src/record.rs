//! A compiled unit with what it was made from, so that one whose inputs did not change starts no process.
//!
//! cargo would find that out too, but takes 0.07 s for it: over twenty units of three architectures that is
//! longer than it takes to compile the one that changed.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fmt::Write, fs};

use crate::{Error, files};

/// What came out of a compilation, ready to be written.
pub(crate) struct Compiled {
    /// The text with its stamp.
    pub(crate) ptx: String,
    /// Every file that went in, the toolchain's aside.
    pub(crate) inputs: Vec<PathBuf>,
    /// The compiler's warnings, each with its place.
    pub(crate) warnings: Vec<String>,
}

/// A file that keeps a [`Compiled`]: the key, the inputs with their times and the warnings, a line each; an
/// empty line; the PTX.
pub(crate) struct Record<'a> {
    pub(crate) file: &'a Path,
    /// All that decides the PTX beside the inputs, in one line.
    pub(crate) key: String,
}

impl Record<'_> {
    /// What was kept, if it was made with this key and its inputs are as they were.
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

    /// Keeps what a compilation that began at `start` made. Where an input changed since, the compiler may
    /// have read it before or after: then nothing is kept, and cargo decides at the next build.
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

/// True for a file that was last written before `time`.
pub(crate) fn is_older(path: &Path, time: SystemTime) -> bool {
    modified(path).is_some_and(|written| written < nanoseconds(time))
}

/// When a file was last written.
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
