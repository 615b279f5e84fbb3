//! The embedded PTX, a text for each op and architecture, split so that a kernel's first launch compiles that kernel
//! alone.
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::Range;
use std::sync::{LazyLock, OnceLock};

use crate::Dtype;
use crate::ladder::Arch;

/// The PTX of one architecture.
pub(crate) struct Ptx {
    pub arch: Arch,
    units: Vec<Unit>,
}

/// The PTX of an op: the name of each of its entries starts with the op's.
struct Unit {
    op: &'static str,
    text: &'static str,
    /// Found when they are first asked for.
    entries: OnceLock<BTreeMap<&'static str, Range<usize>>>,
}

/// One for each architecture, oldest first: a GPU takes the last that it can run.
pub(crate) static EMBEDDED: LazyLock<Vec<Ptx>> = LazyLock::new(|| {
    // Written by `build.rs`.
    let archs: &[(Arch, &[(&str, &str)])] = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
    archs.iter().map(|&(arch, units)| Ptx::new(arch, units)).collect()
});

const ENTRY: &str = ".visible .entry ";

impl Ptx {
    /// The PTX of these ops. A text with entries of several ops has an empty name.
    pub fn new(arch: Arch, units: &[(&'static str, &'static str)]) -> Self {
        let unit = |&(op, text)| Unit { op, text, entries: OnceLock::new() };
        Self { arch, units: units.iter().map(unit).collect() }
    }

    /// A module with the entry `kernel` and whatever of its text is no entry; `None` when there is no such entry.
    pub fn module(&self, kernel: &str) -> Option<CString> {
        self.units.iter().filter(|unit| kernel.starts_with(unit.op)).find_map(|unit| unit.module(kernel))
    }
}

impl Unit {
    /// The entries by name: each from its directive to the brace that closes it, alone on a line.
    fn entries(&self) -> &BTreeMap<&'static str, Range<usize>> {
        self.entries.get_or_init(|| {
            let starts = self.text.match_indices(ENTRY).map(|(start, _)| start);
            let range = |start: usize| {
                let body = &self.text[start..];
                let name = body[ENTRY.len()..].split('(').next().unwrap_or_default().trim();
                (name, start..start + body.find("\n}").map_or(body.len(), |end| end + 2))
            };
            starts.map(range).collect()
        })
    }

    fn module(&self, kernel: &str) -> Option<CString> {
        let entries = self.entries();
        let wanted = entries.get(kernel)?.clone();
        let mut ranges: Vec<_> = entries.values().cloned().collect();
        ranges.sort_by_key(|range| range.start);
        let (mut module, mut end) = (String::new(), 0);
        for range in ranges {
            module.push_str(&self.text[end..range.start]);
            if range == wanted {
                module.push_str(&self.text[range.clone()]);
            }
            end = range.end;
        }
        module.push_str(&self.text[end..]);
        CString::new(module).ok()
    }

    /// The entries for one element type: between op and type stands the variant, if there are several.
    fn entries_of(&self, dtype: Dtype) -> Vec<&'static str> {
        let suffix = format!("_{dtype}");
        self.entries().keys().copied().filter(|name| name.ends_with(&suffix)).collect()
    }
}

/// The newest embedded PTX that a GPU of this compute capability runs, or that of `arch` if it runs that one.
pub(crate) fn choose(capability: (u32, u32), arch: Option<Arch>) -> Option<&'static Ptx> {
    let runs = |ptx: &&Ptx| ptx.arch.capability() <= capability && arch.is_none_or(|arch| arch == ptx.arch);
    EMBEDDED.iter().rfind(runs)
}

/// A kernel that this build has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// The op: `rms_norm`.
    pub op: &'static str,
    /// The element type.
    pub dtype: Dtype,
    /// The architecture of its PTX: `sm_90`.
    pub arch: &'static str,
    /// The entries that serve it, one for each kind of launch.
    pub entries: Vec<&'static str>,
}

/// Every (op, dtype, architecture) that this build has, read from the embedded PTX itself.
pub fn kernel_info() -> Vec<KernelInfo> {
    let mut found = Vec::new();
    for ptx in EMBEDDED.iter() {
        for unit in &ptx.units {
            for dtype in Dtype::FLOATS {
                let entries = unit.entries_of(dtype);
                if !entries.is_empty() {
                    found.push(KernelInfo { op: unit.op, dtype, arch: ptx.arch.name(), entries });
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

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
    fn a_module_holds_one_entry_and_everything_that_is_none() {
        let text = ".version 8.0\n.visible .entry a(\n)\n{\n\tret;\n}\n.global .b8 g;\n.visible .entry b(\n)\n{\n\tret;\n}\n";
        let ptx = Ptx::new(Arch::Sm90, &[("", text)]);
        let module = ptx.module("b").expect("there is a b").into_string().unwrap();
        assert!(module.contains(".version") && module.contains(".global") && module.contains(".entry b("));
        assert!(!module.contains(".entry a("));
        assert!(ptx.module("c").is_none());
    }

    #[test]
    fn a_kernel_is_found_in_the_op_that_it_belongs_to() {
        let units = [
            ("norm", ".visible .entry norm_f32(\n)\n{\n}\n.visible .entry norm_wide_f32(\n)\n{\n}\n"),
            ("norm_gated", ".visible .entry norm_gated_f32(\n)\n{\n}\n"),
        ];
        let ptx = Ptx::new(Arch::Sm90, &units);
        for kernel in ["norm_f32", "norm_wide_f32", "norm_gated_f32"] {
            let module = ptx.module(kernel).expect(kernel).into_string().unwrap();
            assert_eq!(module.matches(ENTRY).count(), 1, "{module}");
            assert!(module.contains(&format!("{ENTRY}{kernel}(")), "{module}");
        }
        assert_eq!(ptx.units[0].entries_of(Dtype::F32), ["norm_f32", "norm_wide_f32"]);
        assert!(ptx.units[0].entries_of(Dtype::F16).is_empty());
    }

    #[test]
    fn every_kernel_is_there_under_the_name_of_its_op() {
        let kernels: BTreeSet<_> = kernels_gpu::kernels().map(|kernel| kernel.name).collect();
        for ptx in EMBEDDED.iter() {
            let entries: Vec<_> = ptx.units.iter().flat_map(|unit| unit.entries().keys().copied()).collect();
            assert_eq!(entries.iter().copied().collect::<BTreeSet<_>>(), kernels, "{}", ptx.arch.name());
            assert_eq!(entries.len(), kernels.len(), "an entry of two ops");
            for unit in &ptx.units {
                let ours = |name: &&str| name.strip_prefix(unit.op).is_some_and(|rest| rest.starts_with('_'));
                let other: Vec<_> = unit.entries().keys().filter(|name| !ours(name)).collect();
                assert!(other.is_empty(), "{other:?} in the PTX of {}", unit.op);
            }
        }
        let listed: usize = kernel_info().iter().map(|kernel| kernel.entries.len()).sum();
        assert_eq!(listed, kernels.len() * EMBEDDED.len(), "an entry that ends with no element type");
    }
}
