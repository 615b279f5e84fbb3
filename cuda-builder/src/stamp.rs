//! The stamp of a copied PTX file. A stamp is a list of comments at the start of the file, with hashes of the
//! PTX text and of its Rust sources.
//!
//! ```text
//! // PTX of oxiwarp-kernels-gpu (rope) for sm_90
//! // text 6f0b1c9b6a2f14d5
//! // source 0f44f3a1b4b7c3d2 src/ops/rope.rs
//! .version 8.1
//! ```
//!
//! When the host launches a kernel of prebuilt PTX, it passes the argument structs of the current sources.
//! PTX that was compiled from older sources may expect different arguments. The builder therefore compares
//! hashes before it uses a prebuilt file. The hashes cover the sources of the crate and of its path
//! dependencies. They do not cover `Cargo.toml`, `Cargo.lock` and `rust-toolchain.toml`, because edits of the
//! host crates also change these files.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;
use std::{fs, iter};

use crate::{Arch, PtxFile, record};

const COMMENT: &str = "// ";

/// Returns the label of a PTX text: the first of the comments at its start. The label names the package, the
/// unit, the architecture and the extra rustc arguments.
pub(crate) fn label(package: &str, unit: Option<&str>, arch: Arch, rustc_args: &[String]) -> String {
    let unit = unit.map(|unit| format!(" ({unit})")).unwrap_or_default();
    let args = rustc_args.iter().map(|arg| format!(" {arg}")).collect::<String>();
    let with = if args.is_empty() { "" } else { ", with" };
    format!("{}{unit} for {arch}{with}{args}", start(package))
}

/// Returns the text with which the first line of each PTX file of a package starts.
fn start(package: &str) -> String {
    format!("PTX of {package}")
}

/// Returns whether the first line of the text `stamped` says that the builder compiled this PTX from the
/// package `package`.
pub(crate) fn is_of(stamped: &str, package: &str) -> bool {
    let rest = stamped.strip_prefix(COMMENT).and_then(|label| label.strip_prefix(&start(package)));
    rest.is_some_and(|rest| rest.starts_with(' '))
}

/// Deletes outdated PTX copies of the package in the folders of `copies`. A copy is outdated if `copies` does
/// not contain it, because its unit (part of the crate) was renamed or deleted.
pub(crate) fn remove_old_copies(copies: &[PtxFile], package: &str) {
    let folders: BTreeSet<&Path> = copies.iter().filter_map(|file| file.path.parent()).collect();
    for entry in folders.into_iter().flat_map(fs::read_dir).flatten().flatten() {
        let path = entry.path();
        let is_old =
            path.extension() == Some(OsStr::new("ptx")) && copies.iter().all(|file| file.path != path);
        if is_old && fs::read_to_string(&path).is_ok_and(|text| is_of(&text, package)) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the PTX text with its stamp (comments with hashes) at the start. `start` is the time at which the
/// compiler started. If a source changed after `start`, the stamp contains the word `changed` instead of the
/// hash of this source.
pub(crate) fn add(
    label: &str,
    text: &str,
    crate_dir: &Path,
    sources: &[PathBuf],
    start: SystemTime,
) -> String {
    let mut stamped = format!("{COMMENT}{label}\n{COMMENT}text {}\n", hash(text.as_bytes()));
    for source in sources {
        let hash = hash_file(source).filter(|_| record::is_older(source, start));
        let (hash, path) = (hash.as_deref().unwrap_or("changed"), relative(source, crate_dir));
        let _ = writeln!(stamped, "{COMMENT}source {hash} {}", path.display());
    }
    stamped + text
}

/// Returns the lines of the stamp (comments with hashes), and the text after the stamp.
fn split(stamped: &str) -> (Vec<&str>, &str) {
    let (mut lines, mut text) = (Vec::new(), stamped);
    while let Some((line, rest)) = text.strip_prefix(COMMENT).and_then(|line| line.split_once('\n')) {
        lines.push(line);
        text = rest;
    }
    (lines, text)
}

/// Returns the PTX text without its stamp (the comments with hashes at the start).
pub(crate) fn remove(stamped: &str) -> &str {
    split(stamped).1
}

/// Reason to reject a PTX file.
pub(crate) enum Flaw {
    /// The file has the wrong label or architecture, or the builder did not write it.
    Wrong(String),
    /// The PTX file, or one of its sources, has changed since the compilation.
    /// [`accept_stale`](crate::CudaBuilder::accept_stale) allows such files.
    Stale(String),
}

/// Compares prebuilt PTX texts with the sources of a crate.
pub(crate) struct Checker<'a> {
    crate_dir: &'a Path,
    /// Caches the hash of each source file, because many PTX texts have the same sources. The value `None`
    /// means that the source file does not exist.
    hashes: HashMap<PathBuf, Option<String>>,
}

impl<'a> Checker<'a> {
    pub(crate) fn new(crate_dir: &'a Path) -> Checker<'a> {
        Checker { crate_dir, hashes: HashMap::new() }
    }

    /// Checks that a PTX text has the given label, is for `arch`, and was compiled from the current sources.
    pub(crate) fn check(&mut self, stamped: &str, label: &str, arch: Arch) -> Result<(), Flaw> {
        let (lines, text) = split(stamped);
        let mut lines = lines.into_iter();
        match lines.next() {
            Some(found) if found == label => {}
            Some(found) => return Err(Flaw::Wrong(format!("is {found}, expected {label}"))),
            None => return Err(Flaw::Wrong(format!("has no stamp of cuda-builder, expected {label}"))),
        }
        let target = text.lines().find_map(|line| line.strip_prefix(".target ")?.split(',').next());
        if target.map(str::trim) != Some(arch.name()) {
            let found = target.map_or("no .target".into(), |target| format!(".target {target}"));
            return Err(Flaw::Wrong(format!("has {found}, expected .target {arch}")));
        }
        if lines.next() != Some(&format!("text {}", hash(text.as_bytes()))) {
            return Err(Flaw::Stale("was edited after it was compiled".into()));
        }
        for (compiled, path) in lines.filter_map(|line| line.strip_prefix("source ")?.split_once(' ')) {
            let source = self.crate_dir.join(path);
            let now = self.hashes.entry(source).or_insert_with_key(|source| hash_file(source));
            if now.as_deref() != Some(compiled) {
                return Err(Flaw::Stale(format!("was compiled before {path} changed")));
            }
        }
        Ok(())
    }

    /// Returns the files that the checked stamps name, if these files exist.
    pub(crate) fn sources(self) -> BTreeSet<PathBuf> {
        self.hashes.into_iter().filter_map(|(path, hash)| hash.map(|_| path)).collect()
    }
}

fn hash_file(path: &Path) -> Option<String> {
    fs::read(path).ok().map(|bytes| hash(&bytes))
}

/// Returns the 64-bit FNV-1a hash of `bytes`. Unlike the hashes of Rust's standard library, this hash is the
/// same on every machine and with every toolchain.
pub(crate) fn hash(bytes: &[u8]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// Returns `path` relative to `base`. Both paths are absolute.
fn relative(path: &Path, base: &Path) -> PathBuf {
    let common = path.components().zip(base.components()).take_while(|(path, base)| path == base).count();
    let up = iter::repeat_n(Component::ParentDir, base.components().count() - common);
    up.chain(path.components().skip(common)).collect()
}
