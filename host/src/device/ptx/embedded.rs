//! The PTX that is embedded in this library. It consists of one compressed text per op and architecture,
//! called a unit.
//!
//! At the first launch of a kernel, the unit of its op is decompressed. The driver then compiles only this
//! kernel, not the complete unit.
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::Range;
use std::sync::{LazyLock, OnceLock};

use super::arch::Arch;
use super::overlap::Overlap;
use crate::Dtype;

/// The PTX of one architecture.
pub(crate) struct Ptx {
    pub arch: Arch,
    pub(super) units: Vec<Unit>,
}

/// The PTX of one op. The name of each entry starts with the name of the op.
pub(super) struct Unit {
    pub op: &'static str,
    /// The first lines of the text, which name the architecture.
    head: &'static str,
    /// The rest of the text, compressed with DEFLATE.
    packed: &'static [u8],
    /// The complete text, decompressed on first use.
    text: OnceLock<Text>,
}

/// A PTX text, and the byte range of each kernel entry by name. An entry starts with its `.entry` directive.
/// It ends with the first `}` at the start of a line, at the latest where the next entry starts.
struct Text {
    text: String,
    entries: BTreeMap<String, Range<usize>>,
}

/// The table that `build.rs` generates. For each architecture, the first field lists the ops. An op has its
/// name, the first lines of its PTX, and an index into the second field. The second field has the compressed
/// remainders of the PTX texts.
type Table = (&'static [(Arch, &'static [(&'static str, &'static str, usize)])], &'static [&'static [u8]]);

/// The PTX of each architecture, oldest first. A GPU uses the newest PTX that it can run. A Hopper GPU also
/// uses the PTX for `sm_90a`, which runs only on Hopper.
pub(super) static EMBEDDED: LazyLock<Vec<Ptx>> = LazyLock::new(|| {
    // `build.rs` writes this file.
    let (archs, codes): Table = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
    let unit =
        |&(op, head, code): &(_, _, usize)| Unit { op, head, packed: codes[code], text: OnceLock::new() };
    archs.iter().map(|&(arch, units)| Ptx { arch, units: units.iter().map(unit).collect() }).collect()
});

const ENTRY: &str = ".visible .entry ";

impl Ptx {
    /// Makes PTX from uncompressed texts, each with the name of its op. The name is empty if a text has
    /// entries of several ops.
    pub fn new(arch: Arch, units: &[(&'static str, &str)]) -> Self {
        let text = |text: &str| Text::new(text.into()).into();
        let unit = |&(op, of_op): &(_, _)| Unit { op, head: "", packed: &[], text: text(of_op) };
        Self { arch, units: units.iter().map(unit).collect() }
    }

    /// Returns a PTX module with only one entry, `kernel`. The PTX text outside of entries is also in the
    /// module. Returns `None` if there is no such entry. `overlap` determines which instructions of
    /// programmatic dependent launch are inserted.
    pub fn module(&self, kernel: &str, overlap: Overlap) -> Option<CString> {
        let units = self.units.iter().filter(|unit| kernel.starts_with(unit.op));
        // An op name can be a prefix of another one, e.g. `softmax` and `softmax_backward`. The longer name
        // comes later in the sorted list. A search from the end finds it first, without decompressing
        // `softmax`.
        units.rev().find_map(|unit| unit.text().module(kernel, overlap))
    }
}

impl Unit {
    fn text(&self) -> &Text {
        self.text.get_or_init(|| {
            let code = miniz_oxide::inflate::decompress_to_vec(self.packed).expect("`build.rs` packed it");
            Text::new(self.head.to_string() + str::from_utf8(&code).expect("it was a string"))
        })
    }

    /// Returns the names of all entries for one element type. A name is the op, optionally a variant, and the
    /// element type, for example `rms_norm_block2_bf16`.
    pub fn entries_of(&self, dtype: Dtype) -> Vec<&str> {
        let suffix = format!("_{dtype}");
        self.text().entries.keys().map(String::as_str).filter(|name| name.ends_with(&suffix)).collect()
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

    fn module(&self, kernel: &str, overlap: Overlap) -> Option<CString> {
        let wanted = self.entries.get(kernel)?.clone();
        let mut ranges: Vec<_> = self.entries.values().cloned().collect();
        ranges.sort_by_key(|range| range.start);
        let (mut module, mut end) = (String::new(), 0);
        for range in ranges {
            module.push_str(&self.text[end..range.start]);
            if range == wanted {
                module += &overlap.place(&self.text[range.clone()])?;
            }
            end = range.end;
        }
        module.push_str(&self.text[end..]);
        CString::new(module).ok()
    }
}

/// Returns the newest embedded PTX that a GPU of this compute capability can run. With `arch`, returns the
/// PTX of `arch` if the GPU can run it. Never returns PTX that runs only on one compute capability, such as
/// `sm_90a`.
pub(crate) fn choose(capability: (u32, u32), arch: Option<Arch>) -> Option<&'static Ptx> {
    let runs = |ptx: &&Ptx| {
        !ptx.arch.is_native() && ptx.arch.runs_on(capability) && arch.is_none_or(|arch| arch == ptx.arch)
    };
    EMBEDDED.iter().rfind(runs)
}

/// Returns the architectures among which [`choose`] selects.
pub(crate) fn archs() -> impl Iterator<Item = Arch> {
    EMBEDDED.iter().map(|ptx| ptx.arch).filter(|arch| !arch.is_native())
}

/// Returns the names of these architectures, for error messages.
pub(crate) fn available() -> String {
    let names: Vec<_> = archs().map(Arch::name).collect();
    if names.is_empty() {
        "no GPU, because OXIWARP_PTX was set in the build".into()
    } else {
        names.join(", ")
    }
}

/// Returns the embedded PTX that runs only on this compute capability, such as `sm_90a`. The GPU uses it in
/// addition to `ptx`, from which it loads most kernels. Returns `None` if `ptx` is not the newest PTX that
/// the GPU can run, or if no such PTX is embedded.
pub(crate) fn native(capability: (u32, u32), ptx: &'static Ptx) -> Option<&'static Ptx> {
    choose(capability, None).filter(|newest| std::ptr::eq(*newest, ptx))?;
    EMBEDDED.iter().find(|ptx| ptx.arch.is_native() && ptx.arch.runs_on(capability))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cuda_std::cpu::Overlap as Policy;

    use super::*;
    use crate::kernel_info;

    #[test]
    fn a_gpu_takes_the_newest_ptx_that_it_runs() {
        let name = |capability, arch| choose(capability, arch).map(|ptx| ptx.arch.name());
        assert_eq!(name((7, 0), None), None, "older than the oldest");
        assert_eq!(name((7, 5), None), Some("sm_75"));
        assert_eq!(name((8, 9), None), Some("sm_80"));
        assert_eq!(name((9, 0), None), Some("sm_90"));
        assert_eq!(name((12, 0), None), Some("sm_90"), "by forward compatibility");
        assert_eq!(name((9, 0), Some(Arch::Sm75)), Some("sm_75"));
        assert_eq!(name((8, 0), Some(Arch::Sm90)), None, "newer than the GPU");
    }

    #[test]
    fn a_gpu_can_be_told_to_take_what_is_listed() {
        assert_eq!(available(), "sm_75, sm_80, sm_90");
        assert!(archs().all(|arch| choose((9, 0), Some(arch)).is_some()));
    }

    #[test]
    fn native_ptx_is_for_one_gpu_and_beside_its_newest() {
        let name = |capability, arch| {
            let chosen = choose(capability, arch).expect("there is one");
            native(capability, chosen).map(|ptx| ptx.arch.name())
        };
        assert_eq!(name((9, 0), None), Some("sm_90a"));
        assert_eq!(name((9, 0), Some(Arch::Sm90)), Some("sm_90a"));
        assert_eq!(name((9, 0), Some(Arch::Sm80)), None, "an older one was asked for");
        assert_eq!(name((8, 0), None), None);
        assert_eq!(name((12, 0), None), None, "newer GPUs do not run it");
    }

    #[test]
    fn a_module_holds_one_entry_and_everything_that_is_none() {
        let text = ".version 8.0\n.visible .entry a(\n)\n{\n\tret;\n}\n.global .b8 g;\n.visible .entry b(\n)\n{\n\tret;\n}\n";
        let ptx = Ptx::new(Arch::Sm90, &[("", text)]);
        let module = ptx.module("b", Overlap::Never).expect("there is a b").into_string().unwrap();
        assert!(module.contains(".version") && module.contains(".global") && module.contains(".entry b("));
        assert!(!module.contains(".entry a("));
        assert!(ptx.module("c", Overlap::Never).is_none());
    }

    #[test]
    fn an_entry_on_one_line_ends_before_the_next() {
        let (a, b) = (".visible .entry a() { ret; }\n", ".visible .entry b()\n{\n\tret;\n}\n");
        let text = [".version 8.0\n", a, b, ".visible .entry c() { ret; }"].concat();
        let ptx = Ptx::new(Arch::Sm90, &[("", &text)]);
        let module = |kernel| ptx.module(kernel, Overlap::Never).expect(kernel).into_string().unwrap();
        assert_eq!(module("a"), [".version 8.0\n", a, "\n"].concat());
        assert_eq!(module("b"), [".version 8.0\n", b].concat());
        assert_eq!(module("c"), ".version 8.0\n\n.visible .entry c() { ret; }");
    }

    #[test]
    fn a_kernel_that_overlaps_waits_before_anything_else() {
        let text = ".version 8.0\n.visible .entry a(\n\t.param .align 8 .b8 a_param_0[16]\n)\n.maxntid 64, 1, 1\n{\n\tret;\n}\n";
        let ptx = Ptx::new(Arch::Sm90, &[("", text)]);
        let policies = [Policy::Plain, Policy::Before, Policy::Both].map(Overlap::As);
        for overlap in [Overlap::Never].into_iter().chain(policies) {
            let module = ptx.module("a", overlap).unwrap().into_string().unwrap();
            assert_eq!(module, text.replace("{\n", &format!("{{{}\n", overlap.begin())));
            let placed = text.replace("\tret", "\tmov.b32 %r1, 0;\n\tgriddepcontrol.wait;\n\tret");
            let module =
                Ptx::new(Arch::Sm90, &[("", &placed)]).module("a", overlap).unwrap().into_string().unwrap();
            assert_eq!(
                module,
                placed.replace("\n\tgriddepcontrol.wait;", &overlap.begin()),
                "where it says so"
            );
            assert_eq!(module.contains("griddepcontrol.wait;"), overlap != Overlap::Never);
            assert_eq!(
                module.contains("griddepcontrol.launch_dependents;"),
                overlap == Overlap::As(Policy::Both)
            );
        }
    }

    #[test]
    fn kernels_overlap_as_they_declare() {
        for kernel in kernels_gpu::kernels() {
            assert_eq!(Overlap::of(kernel.name), Overlap::As(kernel.overlap), "{}", kernel.name);
        }
        for other in ["attention_hopper_d64_smem_bf16", "activation_of_another_crate_f32"] {
            assert_eq!(Overlap::of(other), Overlap::As(Policy::Both), "{other}");
        }
    }

    #[test]
    fn a_kernel_is_found_in_the_op_that_it_belongs_to() {
        let units = [
            ("norm", ".visible .entry norm_f32(\n)\n{\n}\n.visible .entry norm_wide_f32(\n)\n{\n}\n"),
            ("norm_gated", ".visible .entry norm_gated_f32(\n)\n{\n}\n"),
        ];
        let ptx = Ptx::new(Arch::Sm90, &units);
        for kernel in ["norm_f32", "norm_wide_f32", "norm_gated_f32"] {
            let module = ptx.module(kernel, Overlap::Never).expect(kernel).into_string().unwrap();
            assert_eq!(module.matches(ENTRY).count(), 1, "{module}");
            assert!(module.contains(&format!("{ENTRY}{kernel}(")), "{module}");
        }
        assert_eq!(ptx.units[0].entries_of(Dtype::F32), ["norm_f32", "norm_wide_f32"]);
        assert!(ptx.units[0].entries_of(Dtype::F16).is_empty());
    }

    #[test]
    fn a_text_is_unpacked_when_it_is_first_asked_for() {
        let (head, code) = (".version 8.0\n", ".visible .entry norm_gated_f32(\n)\n{\n\tret;\n}\n");
        let packed = miniz_oxide::deflate::compress_to_vec(code.as_bytes(), 5).leak();
        let unit = |op| Unit { op, head, packed, text: OnceLock::new() };
        let ptx = Ptx { arch: Arch::Sm90, units: ["norm", "norm_gated"].map(unit).into() };
        let unpacked = || ptx.units.iter().map(|unit| unit.text.get().is_some()).collect::<Vec<_>>();
        assert!(ptx.module("sum_f32", Overlap::Never).is_none());
        assert_eq!(unpacked(), [false, false]);
        let module = ptx.module("norm_gated_f32", Overlap::Never).expect("it is there");
        assert_eq!(module.to_str(), Ok([head, code].concat().as_str()));
        assert_eq!(unpacked(), [false, true]);
    }

    #[test]
    fn every_kernel_is_there_under_the_name_of_its_op() {
        let kernels: BTreeSet<_> = kernels_gpu::kernels().map(|kernel| kernel.name).collect();
        for ptx in EMBEDDED.iter() {
            let entries: Vec<_> = ptx.units.iter().flat_map(|unit| unit.text().entries.keys()).collect();
            let names: BTreeSet<_> = entries.iter().map(|name| name.as_str()).collect();
            assert_eq!(entries.len(), names.len(), "an entry of two ops");
            if !ptx.arch.is_native() {
                let here = |name: &&str| ptx.arch != Arch::Sm75 || !name.starts_with("attention");
                assert_eq!(names, kernels.iter().copied().filter(here).collect(), "{}", ptx.arch.name());
            }
            let target = format!("\n.target {}\n", ptx.arch.name());
            for unit in &ptx.units {
                assert!(unit.text().text.contains(&target), "{} is not for {target}", unit.op);
                let ours = |n: &&String| n.strip_prefix(unit.op).is_some_and(|rest| rest.starts_with('_'));
                let other: Vec<_> = unit.text().entries.keys().filter(|name| !ours(name)).collect();
                assert!(other.is_empty(), "{other:?} in the PTX of {}", unit.op);
            }
        }
        let listed: usize = kernel_info().iter().map(|kernel| kernel.entries.len()).sum();
        let all: usize =
            EMBEDDED.iter().flat_map(|ptx| &ptx.units).map(|unit| unit.text().entries.len()).sum();
        assert_eq!(listed, all, "an entry that ends with no element type");
    }
}
