//! What this build has: its ops and their kernels, as the embedded PTX says.
use super::EMBEDDED;
use crate::Dtype;

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

/// Units that serve the op that they are named after: of one GPU alone, or of some calls.
const PARTS: [&str; 2] = ["_hopper", "_decode"];

/// Every (op, dtype, architecture) that this build has, read from the embedded PTX itself.
pub fn kernel_info() -> Vec<KernelInfo> {
    let mut found = Vec::<KernelInfo>::new();
    for ptx in EMBEDDED.iter() {
        for unit in &ptx.units {
            let op = PARTS.iter().find_map(|part| unit.op.strip_suffix(part)).unwrap_or(unit.op);
            for dtype in Dtype::FLOATS {
                let (arch, entries) = (ptx.arch.name(), unit.entries_of(dtype));
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
