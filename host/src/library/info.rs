//! The list of all ops and kernels in this build, read from the embedded PTX.
use super::embedded::EMBEDDED;
use crate::Dtype;

/// A kernel of this build, for one dtype and architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// The name of the op, for example `rms_norm`.
    pub op: &'static str,
    /// The element type.
    pub dtype: Dtype,
    /// The architecture of its PTX, for example `sm_90`.
    pub arch: &'static str,
    /// The names of the PTX entries. An op has one or more entries per dtype and architecture.
    pub entries: Vec<&'static str>,
}

/// Suffixes in the names of PTX files. Without the suffix, the name is the name of the op. For example, the
/// file `attention_hopper` contains kernels of the op `attention`.
const PARTS: [&str; 5] = ["_block_hopper", "_promoted_hopper", "_hopper", "_decode", "_positions"];

/// Returns the PTX entries (kernels) in this build, for each op, dtype and architecture. The function reads
/// the names of the entries from the embedded PTX.
pub fn kernel_info() -> Vec<KernelInfo> {
    let mut found = Vec::<KernelInfo>::new();
    for ptx in EMBEDDED.iter() {
        for unit in &ptx.units {
            let op = PARTS.iter().find_map(|part| unit.name.strip_suffix(part)).unwrap_or(unit.name);
            for dtype in Dtype::FLOATS {
                let suffix = format!("_{dtype}");
                let entries: Vec<_> = unit.entries().filter(|name| name.ends_with(&suffix)).collect();
                let arch = ptx.arch.name();
                let same = |info: &&mut KernelInfo| (info.op, info.dtype, info.arch) == (op, dtype, arch);
                if let Some(info) = found.iter_mut().find(same) {
                    info.entries.extend(entries);
                } else if !entries.is_empty() {
                    found.push(KernelInfo { op, dtype, arch, entries });
                }
            }
        }
    }
    found
}
