//! The embedded PTX, split so that a kernel's first launch compiles that kernel alone.
use std::collections::HashMap;
use std::ffi::CString;
use std::ops::Range;
use std::sync::OnceLock;

use crate::ladder::Arch;
use crate::{Dtype, ops};

/// The PTX of one architecture.
pub(crate) struct Ptx {
    pub arch: Arch,
    text: &'static str,
    entries: OnceLock<HashMap<&'static str, Range<usize>>>,
}

macro_rules! embedded {
    ($($arch:ident $file:literal)*) => {
        [$(Ptx { arch: Arch::$arch, text: include_str!(concat!(env!("OUT_DIR"), "/", $file)), entries: OnceLock::new() }),*]
    };
}
/// One for each architecture, oldest first: a GPU takes the last that it can run.
pub(crate) static EMBEDDED: [Ptx; 3] = embedded!(Sm75 "sm_75.ptx" Sm80 "sm_80.ptx" Sm90 "sm_90.ptx");

const ENTRY: &str = ".visible .entry ";

impl Ptx {
    /// PTX that is not the embedded one.
    pub fn new(arch: Arch, text: &'static str) -> Self {
        Self { arch, text, entries: OnceLock::new() }
    }

    /// The entries by name: each from its directive to the brace that closes it, alone on a line.
    fn entries(&self) -> &HashMap<&'static str, Range<usize>> {
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

    /// A module with the entry `kernel` and whatever of the file is no entry; `None` when there is no such entry.
    pub fn module(&self, kernel: &str) -> Option<CString> {
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
    for ptx in &EMBEDDED {
        for op in ops::NAMES {
            for dtype in Dtype::FLOATS {
                let ours = |name: &str| {
                    let variant = name.strip_suffix(dtype.name()).and_then(|name| name.strip_suffix('_'));
                    variant.is_some_and(|v| {
                        v == *op || v.strip_prefix(op).is_some_and(|v| v.starts_with("_hold"))
                    })
                };
                let mut entries: Vec<_> = ptx.entries().keys().copied().filter(|name| ours(name)).collect();
                entries.sort_unstable();
                if !entries.is_empty() {
                    found.push(KernelInfo { op, dtype, arch: ptx.arch.name(), entries });
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
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
        let module = Ptx::new(Arch::Sm90, text).module("b").expect("there is a b").into_string().unwrap();
        assert!(module.contains(".version") && module.contains(".global") && module.contains(".entry b("));
        assert!(!module.contains(".entry a("));
        assert!(Ptx::new(Arch::Sm90, text).module("c").is_none());
    }

    #[test]
    fn every_op_dtype_and_architecture_is_there() {
        let found = kernel_info();
        assert_eq!(found.len(), ops::NAMES.len() * Dtype::FLOATS.len() * EMBEDDED.len());
        let listed: usize = found.iter().map(|kernel| kernel.entries.len()).sum();
        let all: usize = EMBEDDED.iter().map(|ptx| ptx.entries().len()).sum();
        assert_eq!(listed, all, "an entry that belongs to no op");
        for kernel in kernels_gpu::kernels() {
            for ptx in &EMBEDDED {
                assert!(
                    ptx.entries().contains_key(kernel.name),
                    "{} is not in {}",
                    kernel.name,
                    ptx.arch.name()
                );
            }
        }
    }
}
