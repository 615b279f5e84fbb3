//! Finds the functions of a PTX text: just enough of the grammar to know where a body starts and ends.

use std::ops::Range;

use super::MARK;

/// What a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A kernel.
    Entry,
    /// A function that kernels call.
    Func,
}

/// A function that has a body.
pub(super) struct Function<'a> {
    pub(super) kind: Kind,
    pub(super) name: &'a str,
    /// What stands between the parameters and the body.
    pub(super) attributes: &'a str,
    /// Where its `{` is.
    pub(super) open: usize,
    /// The `//@entry` comments of its body, each from the start of its line to the start of the next.
    pub(super) marks: Vec<Range<usize>>,
}

/// A function whose body is not reached yet.
struct Pending {
    kind: Kind,
    /// Where its `.entry` or `.func` ends.
    start: usize,
    /// Where its parameters end.
    after: usize,
}

/// Every function of the text that has a body, in order.
pub(super) fn functions(ptx: &str) -> Vec<Function<'_>> {
    let bytes = ptx.as_bytes();
    let mut found = Vec::new();
    let mut pending: Option<Pending> = None;
    let mut current: Option<Function> = None;
    let (mut depth, mut at) = (0_usize, 0);
    while at < bytes.len() {
        let start = at;
        at += 1;
        match bytes[start] {
            b'"' => at = after(ptx, at, "\""),
            b'/' if ptx[start..].starts_with("/*") => at = after(ptx, at, "*/"),
            b'/' if ptx[start..].starts_with("//") => {
                at = after(ptx, at, "\n");
                if let Some(function) = current.as_mut().filter(|_| ptx[start..].starts_with(MARK)) {
                    let line = ptx[..start].rfind('\n').map_or(0, |end| end + 1);
                    function.marks.push(line..at);
                }
            }
            b'{' => {
                if let Some(head) = pending.take() {
                    current = Some(function(ptx, head, start));
                }
                depth += 1;
            }
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    found.extend(current.take());
                }
            }
            b')' => pending.iter_mut().for_each(|head| head.after = at),
            // A declaration, or the end of a module-level variable.
            b';' if depth == 0 => pending = None,
            b'.' if depth == 0 => pending = head(ptx, start).or(pending),
            _ => {}
        }
    }
    found
}

/// Where the text goes on behind the next `end`.
fn after(ptx: &str, at: usize, end: &str) -> usize {
    ptx.as_bytes()[at..]
        .windows(end.len())
        .position(|here| here == end.as_bytes())
        .map_or(ptx.len(), |found| at + found + end.len())
}

/// The `.entry` or `.func` at this dot.
fn head(ptx: &str, dot: usize) -> Option<Pending> {
    let word = &ptx[dot + 1..];
    let (kind, length) = match word {
        _ if word.starts_with("entry") => (Kind::Entry, "entry".len()),
        _ if word.starts_with("func") => (Kind::Func, "func".len()),
        _ => return None,
    };
    let next = word.as_bytes().get(length)?;
    let start = dot + 1 + length;
    (next.is_ascii_whitespace() || *next == b'(').then_some(Pending { kind, start, after: start })
}

fn function(ptx: &str, head: Pending, open: usize) -> Function<'_> {
    let mut name = ptx[head.start..open].trim_start();
    if name.starts_with('(') {
        // What a `.func` returns stands before its name.
        name = name.split_once(')').map_or("", |(_, rest)| rest.trim_start());
    }
    let end = name.find(|c: char| c.is_whitespace() || c == '(' || c == '{').unwrap_or(name.len());
    let attributes = &ptx[head.after..open];
    Function { kind: head.kind, name: &name[..end], attributes, open, marks: Vec::new() }
}
