//! Launch bounds, moved from a kernel's body into its PTX entry.
//!
//! `.maxntid` and its kin stand between an entry's parameters and its body. Rust has no attribute for
//! them, so a kernel says them in a comment, by inline assembly:
//!
//! ```text
//! asm!("//@entry .maxntid 256, 1, 1 .minnctapersm 4", options(nomem, nostack, preserves_flags));
//! ```
//!
//! and [`write_directives`] makes of the compiler's output
//!
//! ```text
//! .visible .entry k(                       .visible .entry k(
//!     .param .u64 k_param_0                    .param .u64 k_param_0
//! )                                        )
//! {                                  →     .maxntid 256, 1, 1
//!     //@entry .maxntid 256, 1, 1 …        .minnctapersm 4
//!     ret;                                 {
//! }                                            ret;
//!                                          }
//! ```
//!
//! Without `.maxntid`, ptxas may give a kernel more registers than its launch allows, and ignores
//! `setmaxnreg`. The comment is wherever inlining left it, and may be there several times; equal
//! directives are written once. A comment that ended up in a function that is no entry is an error: its
//! bounds would be lost.

use std::fmt;

use crate::scan::{Function, Kind, MARK, functions};

/// Directives that may follow an entry's parameters.
const KNOWN: &[&str] = &[
    "maxntid",
    "reqntid",
    "minnctapersm",
    "maxnctapersm",
    "maxnreg",
    "reqnctapercluster",
    "maxclusterrank",
    "explicitcluster",
];

/// Why the directives of a kernel cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// Two comments, or a comment and the compiler, say different things.
    #[error("entry {entry}: .{first} and .{second} contradict each other")]
    Contradiction {
        /// The entry's name.
        entry: String,
        /// The directive that came first.
        first: String,
        /// The one that differs.
        second: String,
    },
    /// The text after `//@entry` is not a list of directives.
    #[error("entry {entry}: `{text}` is not a launch bound; known are: {}", KNOWN.join(", "))]
    Malformed {
        /// The entry's name.
        entry: String,
        /// The part that was not understood.
        text: String,
    },
    /// The comment is in a function that the kernel calls.
    #[error("launch bounds in {function}, which is not an entry: make it and its callers #[inline(always)]")]
    NotAnEntry {
        /// The function's name.
        function: String,
    },
}

/// One directive: `.maxntid 256, 1, 1`.
#[derive(Clone, PartialEq, Eq)]
struct Directive {
    name: String,
    values: Vec<u32>,
}

impl Directive {
    /// Reads `maxntid 256, 1, 1`.
    fn parse(text: &str) -> Option<Directive> {
        let (name, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
        let values = rest.split(',').map(str::trim).filter(|value| !value.is_empty());
        let values = values.map(|value| value.parse().ok()).collect::<Option<Vec<u32>>>()?;
        KNOWN.contains(&name).then(|| Directive { name: name.into(), values })
    }

    /// True if both say the same: a missing dimension is 1.
    fn agrees(&self, other: &Directive) -> bool {
        let dimension = |of: &Directive, at: usize| of.values.get(at).copied().unwrap_or(1);
        let count = self.values.len().max(other.values.len());
        self.name == other.name && (0..count).all(|at| dimension(self, at) == dimension(other, at))
    }
}

impl fmt::Display for Directive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = self.values.iter().map(u32::to_string).collect();
        write!(f, "{} {}", self.name, values.join(", "))
    }
}

/// Moves the directives of every `//@entry` comment of a PTX text into the entry that holds it.
///
/// A text without such comments comes back as it is.
pub fn write_directives(ptx: &str) -> Result<String, EntryError> {
    let mut text = String::with_capacity(ptx.len());
    let mut copied = 0;
    for function in functions(ptx) {
        if function.marks.is_empty() {
            continue;
        }
        text.push_str(&ptx[copied..function.open]);
        for directive in directives(ptx, &function)? {
            text.push_str(&format!(".{directive}\n"));
        }
        copied = function.open;
        for mark in &function.marks {
            text.push_str(&ptx[copied..mark.start]);
            copied = mark.end;
        }
    }
    text.push_str(&ptx[copied..]);
    Ok(text)
}

/// The directives that an entry's comments ask for, less those that it has.
fn directives(ptx: &str, function: &Function) -> Result<Vec<Directive>, EntryError> {
    let entry = || function.name.to_string();
    if function.kind == Kind::Func {
        return Err(EntryError::NotAnEntry { function: entry() });
    }
    // What the compiler wrote there may be more than launch bounds: the rest is not ours to read.
    let mut all: Vec<Directive> = function.attributes.split('.').filter_map(Directive::parse).collect();
    let present = all.len();
    for mark in &function.marks {
        let list = ptx[mark.clone()].trim().trim_start_matches(MARK).trim();
        let list =
            list.strip_prefix('.').ok_or(EntryError::Malformed { entry: entry(), text: list.into() })?;
        for part in list.split('.') {
            let malformed = || EntryError::Malformed { entry: entry(), text: part.trim().into() };
            let new = Directive::parse(part).ok_or_else(malformed)?;
            match all.iter().find(|old| old.name == new.name) {
                None => all.push(new),
                Some(old) if old.agrees(&new) => {}
                Some(old) => {
                    let (first, second) = (old.to_string(), new.to_string());
                    return Err(EntryError::Contradiction { entry: entry(), first, second });
                }
            }
        }
    }
    Ok(all.split_off(present))
}

#[cfg(test)]
mod tests;
