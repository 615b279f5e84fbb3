//! Moves launch bounds from an `//@entry` comment in a kernel's body to the head of its PTX entry.
//!
//! PTX directives such as `.maxntid` belong between an entry's parameters and its body. Rust has no attribute
//! for these directives. A kernel therefore declares its directives in an inline assembly comment:
//! ```text
//! asm!("//@entry .maxntid 256, 1, 1 .minnctapersm 4", options(nomem, nostack, preserves_flags));
//! ```
//!
//! The function [`write_directives`] rewrites the compiler's output as follows:
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
//! Without `.maxntid`, ptxas may use more registers per thread than the launch allows. ptxas also ignores
//! `setmaxnreg`. The compiler's inlining may move the `//@entry` comment to any line of the body, or
//! duplicate it. If a directive appears several times, [`write_directives`] writes it once. An `//@entry`
//! comment in a function that is not an entry is an error, because launch bounds in such a function have no
//! effect.

use std::fmt;

use crate::scan::{Function, Kind, MARK, functions};

/// Names of the PTX directives that a kernel may declare in an inline-assembly comment `//@entry`.
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

/// Reason why a kernel's launch bounds (directives such as `.maxntid`) cannot be written to its PTX entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// Two `//@entry` comments of one kernel contradict each other, or an `//@entry` comment contradicts a
    /// directive that the compiler wrote.
    #[error("entry {entry}: .{first} and .{second} contradict each other")]
    Contradiction {
        /// The entry's name.
        entry: String,
        /// The directive that appears first.
        first: String,
        /// The directive that differs from `first`.
        second: String,
    },
    /// The text after `//@entry` is not a list of directives.
    #[error("entry {entry}: `{text}` is not a launch bound; known are: {}", KNOWN.join(", "))]
    Malformed {
        /// The entry's name.
        entry: String,
        /// The part of the comment that could not be parsed.
        text: String,
    },
    /// The `//@entry` comment is in a function that is not an entry, because the compiler did not inline this
    /// function into an entry.
    #[error("launch bounds in {function}, which is not an entry: make it and its callers #[inline(always)]")]
    NotAnEntry {
        /// The function's name.
        function: String,
    },
}

/// One directive, such as `.maxntid 256, 1, 1`.
#[derive(Clone, PartialEq, Eq)]
struct Directive {
    name: String,
    values: Vec<u32>,
}

impl Directive {
    /// Parses a directive such as `maxntid 256, 1, 1`.
    fn parse(text: &str) -> Option<Directive> {
        let (name, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
        let values = rest.split(',').map(str::trim).filter(|value| !value.is_empty());
        let values = values.map(|value| value.parse().ok()).collect::<Option<Vec<u32>>>()?;
        KNOWN.contains(&name).then(|| Directive { name: name.into(), values })
    }

    /// Returns whether two directives mean the same. A missing dimension counts as 1: `.maxntid 256` means
    /// the same as `.maxntid 256, 1, 1`.
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

/// Finds every `//@entry` comment of a PTX text. Moves the directives of the comment, such as `.maxntid`,
/// from the entry's body to the lines before this body.
///
/// If a text has no such comments, the function returns it unchanged.
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

/// Returns the directives, such as `.maxntid 256, 1, 1`, in the `//@entry` comments of an entry. Omits
/// directives that the compiler has already written before the entry's body.
fn directives(ptx: &str, function: &Function) -> Result<Vec<Directive>, EntryError> {
    let entry = || function.name.to_string();
    if function.kind == Kind::Func {
        return Err(EntryError::NotAnEntry { function: entry() });
    }
    // The compiler may write its own directives between the parameters and the body of an entry. Of these,
    // use only the directives in `KNOWN`.
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
