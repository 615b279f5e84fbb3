//! A scanner for PTX texts. The scanner finds comments, and the parts of each function: name, parameters and
//! body.

use std::ops::Range;

/// The text with which a launch-bounds comment of a kernel starts. The module [`entry`](crate::entry)
/// describes these comments.
pub(crate) const MARK: &str = "//@entry";

/// A token of a PTX text.
pub(crate) enum Piece {
    /// A comment from `//` to the end of the line.
    LineComment,
    /// A string or a block comment.
    Opaque,
    /// Any other byte.
    Code(u8),
}

/// Returns the token that starts at byte `start` of the PTX text, and the byte offset of the next token.
pub(crate) fn piece(ptx: &str, start: usize) -> (Piece, usize) {
    match ptx.as_bytes()[start] {
        b'"' => (Piece::Opaque, after(ptx, start + 1, "\"")),
        b'/' if ptx[start..].starts_with("/*") => (Piece::Opaque, after(ptx, start + 2, "*/")),
        b'/' if ptx[start..].starts_with("//") => (Piece::LineComment, after(ptx, start, "\n")),
        code => (Piece::Code(code), start + 1),
    }
}

/// Kind of a PTX function: kernel or device function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A kernel.
    Entry,
    /// A function that kernels call.
    Func,
}

/// A PTX function that has a body.
pub(crate) struct Function<'a> {
    pub(crate) kind: Kind,
    pub(crate) name: &'a str,
    /// Byte offset just after the word `.entry` or `.func` that starts the function.
    pub(crate) start: usize,
    /// Text between the parameters and the body.
    pub(crate) attributes: &'a str,
    /// Byte offset of the `{` with which the function's body starts.
    pub(crate) open: usize,
    /// Byte ranges of the lines in the function's body that contain an `//@entry` comment.
    pub(crate) marks: Vec<Range<usize>>,
}

/// A function whose directive (`.entry` or `.func`) the scanner has read, but whose body has not started yet.
struct Pending {
    kind: Kind,
    /// Byte offset just after the word `.entry` or `.func` that starts the function.
    start: usize,
    /// Byte offset of the end of the function's parameters.
    after: usize,
}

/// Returns all functions of the PTX text that have a body, in the order in which they appear.
pub(crate) fn functions(ptx: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    let mut pending: Option<Pending> = None;
    let mut current: Option<Function> = None;
    let (mut depth, mut at) = (0_usize, 0);
    while at < ptx.len() {
        let start = at;
        let (piece, next) = piece(ptx, start);
        at = next;
        match piece {
            Piece::Opaque => {}
            Piece::LineComment => {
                if let Some(function) = current.as_mut().filter(|_| ptx[start..].starts_with(MARK)) {
                    let line = ptx[..start].rfind('\n').map_or(0, |end| end + 1);
                    function.marks.push(line..at);
                }
            }
            Piece::Code(b'{') => {
                if let Some(head) = pending.take() {
                    current = Some(function(ptx, head, start));
                }
                depth += 1;
            }
            Piece::Code(b'}') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    found.extend(current.take());
                }
            }
            Piece::Code(b')') => pending.iter_mut().for_each(|head| head.after = at),
            // This `;` ends a function declaration or a module-level variable.
            Piece::Code(b';') if depth == 0 => pending = None,
            Piece::Code(b'.') if depth == 0 => pending = head(ptx, start).or(pending),
            Piece::Code(_) => {}
        }
    }
    found
}

/// Returns the names of the functions that the PTX text declares with `.extern`, except the names in `known`.
pub(crate) fn undefined<'a>(ptx: &'a str, known: &[&str]) -> Vec<&'a str> {
    let declarations = ptx.lines().filter_map(|line| line.trim_start().strip_prefix(".extern .func"));
    let names = declarations.map(name);
    names.filter(|name| !known.contains(name)).collect()
}

/// Returns the byte offset just after the first occurrence of the string `end` at or after byte `at`. If
/// `end` does not occur, returns the length of the text.
fn after(ptx: &str, at: usize, end: &str) -> usize {
    ptx.as_bytes()[at..]
        .windows(end.len())
        .position(|here| here == end.as_bytes())
        .map_or(ptx.len(), |found| at + found + end.len())
}

/// Reads the directive `.entry` or `.func` whose dot is at byte `dot`, and returns its function. Returns
/// `None` if there is no such directive at `dot`.
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
    let (name, attributes) = (name(&ptx[head.start..open]), &ptx[head.after..open]);
    Function { kind: head.kind, name, start: head.start, attributes, open, marks: Vec::new() }
}

/// Returns the name of a function from the text after `.entry` or `.func`.
fn name(declaration: &str) -> &str {
    let mut name = declaration.trim_start();
    if name.starts_with('(') {
        // In a `.func` declaration, the return parameter precedes the name.
        name = name.split_once(')').map_or("", |(_, rest)| rest.trim_start());
    }
    let end = name.find(|c: char| c.is_whitespace() || matches!(c, '(' | '{' | ';')).unwrap_or(name.len());
    &name[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undefined_functions_are_found() {
        let ptx = ".version 8.1\n.extern .func  (.param .b32 func_retval0) __nv_expf\n(\n\t.param .b32 p\n)\n;\n\
            .extern .func vprintf\n(\n);\n.func (.param .b32 r) two() { ret; }\n.extern .func three();\n";
        assert_eq!(undefined(ptx, &["vprintf"]), ["__nv_expf", "three"]);
        assert_eq!(undefined(".visible .entry k() { ret; }", &[]), [""; 0]);
    }
}
