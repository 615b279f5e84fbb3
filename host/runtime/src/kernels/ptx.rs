//! PTX texts that are embedded in a program. At the first launch of a kernel, this module decompresses the
//! text that contains the kernel. The driver then compiles only this kernel, not the complete text.
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::Read;
use std::ops::Range;
use std::sync::OnceLock;

use lzma_rust2::LzmaReader;

use super::overlap::Instructions;
use crate::arch::Arch;

/// The PTX of a crate for one architecture.
pub struct Ptx {
    /// The architecture.
    pub arch: Arch,
    /// The PTX texts, sorted by name.
    pub units: Vec<Unit>,
}

/// A PTX text.
pub struct Unit {
    /// The name of this PTX text. The names of all kernel entries in the text start with this name. An empty
    /// name permits entries of any name.
    pub name: &'static str,
    /// The first lines of the text. They name the architecture.
    head: &'static str,
    /// The remaining lines of the text.
    code: Code,
    /// The complete text. It is decompressed on first use.
    text: OnceLock<Text>,
}

enum Code {
    Text(Cow<'static, str>),
    /// Compressed with LZMA.
    Packed(&'static [u8]),
}

/// A PTX text, and a map from the name of each kernel entry to its byte range in the text. An entry starts
/// with its `.entry` directive. It ends with the first `}` at the start of a line. If there is no such `}`,
/// the entry ends where the next entry starts.
struct Text {
    text: String,
    entries: BTreeMap<String, Range<usize>>,
}

const ENTRY: &str = ".visible .entry ";

impl Ptx {
    /// Returns a `Ptx` that consists of a single text.
    pub fn of_text(arch: Arch, text: impl Into<Cow<'static, str>>) -> Self {
        Self { arch, units: vec![Unit::of_text("", text)] }
    }

    /// Returns a PTX module with the entry `kernel`, but without the other entries. The module also has all
    /// lines outside of entries. `instructions` are inserted into the entry. Returns `None` if there is no
    /// entry with this name.
    pub(crate) fn module(&self, kernel: &str, instructions: Instructions) -> Option<CString> {
        let units = self.units.iter().filter(|unit| kernel.starts_with(unit.name));
        // The name of a text can be a prefix of the name of another text. For example, `softmax` is a prefix
        // of `softmax_backward`. The texts are sorted by name, so the longer name comes later. Search from
        // the end, to find kernels of `softmax_backward` without decompressing `softmax`.
        units.rev().find_map(|unit| unit.text().module(kernel, instructions))
    }
}

impl Unit {
    /// Makes a unit (one PTX text) from a complete text, which is not compressed.
    pub fn of_text(name: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self { name, head: "", code: Code::Text(text.into()), text: OnceLock::new() }
    }

    /// Makes a unit (one PTX text) from two parts: the first lines `head`, and the compressed remaining lines
    /// `code`. `code` has the format of a `.lzma` file with the uncompressed length in its header.
    pub const fn packed(name: &'static str, head: &'static str, code: &'static [u8]) -> Self {
        Self { name, head, code: Code::Packed(code), text: OnceLock::new() }
    }

    fn text(&self) -> &Text {
        self.text.get_or_init(|| match &self.code {
            Code::Text(text) => Text::new(text.to_string()),
            Code::Packed(packed) => {
                let mut text = self.head.to_string();
                let reader = LzmaReader::new_mem_limit(*packed, u32::MAX, None);
                let read = reader.and_then(|mut reader| reader.read_to_string(&mut text));
                read.expect("the build compressed a string");
                Text::new(text)
            }
        })
    }

    /// Returns the complete text.
    pub fn as_str(&self) -> &str {
        &self.text().text
    }

    /// Returns the names of all entries.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.text().entries.keys().map(String::as_str)
    }
}

impl Text {
    fn new(text: String) -> Self {
        let starts: Vec<usize> = text.match_indices(ENTRY).map(|(start, _)| start).collect();
        let limits = starts.iter().copied().skip(1).chain([text.len()]);
        let range = |(&start, limit)| {
            let body = &text[start..limit];
            let name = body[ENTRY.len()..].split('(').next().unwrap_or_default().trim();
            (name.to_string(), start..start + body.find("\n}").map_or(body.len(), |end| end + 2))
        };
        let entries = starts.iter().zip(limits).map(range).collect();
        Self { text, entries }
    }

    fn module(&self, kernel: &str, instructions: Instructions) -> Option<CString> {
        let wanted = self.entries.get(kernel)?.clone();
        let mut ranges: Vec<_> = self.entries.values().cloned().collect();
        ranges.sort_by_key(|range| range.start);
        let (mut module, mut end) = (String::new(), 0);
        for range in ranges {
            module.push_str(&self.text[end..range.start]);
            if range == wanted {
                module += &instructions.place(&self.text[range.clone()])?;
            }
            end = range.end;
        }
        module.push_str(&self.text[end..]);
        CString::new(module).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use cuda_std::launch::Overlap;
    use lzma_rust2::{LzmaOptions, LzmaWriter};

    use super::*;

    #[test]
    fn a_module_holds_one_entry_and_everything_that_is_none() {
        let text = ".version 8.0\n.visible .entry a(\n)\n{\n\tret;\n}\n.global .b8 g;\n.visible .entry b(\n)\n{\n\tret;\n}\n";
        let ptx = Ptx::of_text(Arch::Sm90, text);
        let module = ptx.module("b", Instructions::None).expect("there is a b").into_string().unwrap();
        assert!(module.contains(".version") && module.contains(".global") && module.contains(".entry b("));
        assert!(!module.contains(".entry a("));
        assert!(ptx.module("c", Instructions::None).is_none());
    }

    #[test]
    fn an_entry_on_one_line_ends_before_the_next() {
        let (a, b) = (".visible .entry a() { ret; }\n", ".visible .entry b()\n{\n\tret;\n}\n");
        let text = [".version 8.0\n", a, b, ".visible .entry c() { ret; }"].concat();
        let ptx = Ptx::of_text(Arch::Sm90, text);
        let module = |kernel| ptx.module(kernel, Instructions::None).expect(kernel).into_string().unwrap();
        assert_eq!(module("a"), [".version 8.0\n", a, "\n"].concat());
        assert_eq!(module("b"), [".version 8.0\n", b].concat());
        assert_eq!(module("c"), ".version 8.0\n\n.visible .entry c() { ret; }");
    }

    #[test]
    fn a_kernel_that_overlaps_waits_before_anything_else() {
        let text = ".version 8.0\n.visible .entry a(\n\t.param .align 8 .b8 a_param_0[16]\n)\n.maxntid 64, 1, 1\n{\n\tret;\n}\n";
        let ptx = Ptx::of_text(Arch::Sm90, text);
        let policies = [Overlap::Plain, Overlap::Before, Overlap::Both].map(Instructions::Of);
        for instructions in [Instructions::None].into_iter().chain(policies) {
            let module = ptx.module("a", instructions).unwrap().into_string().unwrap();
            assert_eq!(module, text.replace("{\n", &format!("{{{}\n", instructions.begin())));
            let placed = text.replace("\tret", "\tmov.b32 %r1, 0;\n\tgriddepcontrol.wait;\n\tret");
            let module = Ptx::of_text(Arch::Sm90, placed.clone())
                .module("a", instructions)
                .unwrap()
                .into_string()
                .unwrap();
            assert_eq!(
                module,
                placed.replace("\n\tgriddepcontrol.wait;", &instructions.begin()),
                "where it says so"
            );
            assert_eq!(module.contains("griddepcontrol.wait;"), instructions != Instructions::None);
            assert_eq!(
                module.contains("griddepcontrol.launch_dependents;"),
                instructions == Instructions::Of(Overlap::Both)
            );
        }
    }

    #[test]
    fn a_kernel_is_found_in_the_op_that_it_belongs_to() {
        let units = [
            ("norm", ".visible .entry norm_f32(\n)\n{\n}\n.visible .entry norm_wide_f32(\n)\n{\n}\n"),
            ("norm_gated", ".visible .entry norm_gated_f32(\n)\n{\n}\n"),
        ];
        let units = units.map(|(name, text)| Unit::of_text(name, text)).into();
        let ptx = Ptx { arch: Arch::Sm90, units };
        for kernel in ["norm_f32", "norm_wide_f32", "norm_gated_f32"] {
            let module = ptx.module(kernel, Instructions::None).expect(kernel).into_string().unwrap();
            assert_eq!(module.matches(ENTRY).count(), 1, "{module}");
            assert!(module.contains(&format!("{ENTRY}{kernel}(")), "{module}");
        }
        assert_eq!(ptx.units[0].entries().collect::<Vec<_>>(), ["norm_f32", "norm_wide_f32"]);
    }

    #[test]
    fn a_text_is_unpacked_when_it_is_first_asked_for() {
        let (head, code) = (".version 8.0\n", ".visible .entry norm_gated_f32(\n)\n{\n\tret;\n}\n");
        let options = LzmaOptions::with_preset(0);
        let mut writer = LzmaWriter::new_use_header(vec![], &options, Some(code.len() as u64)).unwrap();
        writer.write_all(code.as_bytes()).unwrap();
        let packed = writer.finish().unwrap().leak();
        let unit = |name| Unit::packed(name, head, packed);
        let ptx = Ptx { arch: Arch::Sm90, units: ["norm", "norm_gated"].map(unit).into() };
        let unpacked = || ptx.units.iter().map(|unit| unit.text.get().is_some()).collect::<Vec<_>>();
        assert!(ptx.module("sum_f32", Instructions::None).is_none());
        assert_eq!(unpacked(), [false, false]);
        let module = ptx.module("norm_gated_f32", Instructions::None).expect("it is there");
        assert_eq!(module.to_str(), Ok([head, code].concat().as_str()));
        assert_eq!(unpacked(), [false, true]);
    }
}
