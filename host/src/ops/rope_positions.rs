//! Launches of `rope` whose positions choose the rows of the tables, or whose outputs are their inputs.
use kernels_gpu::heads::params::PositionedRotary;
use kernels_gpu::ops::rope_positions::launch as kernels;

use crate::plan::head_kernels::{HalfSplitKernels, HeadKernels, HeadSplit, NO_NORM, PositionedKernel};
use crate::plan::heads::CheckedHeads;
use crate::{Device, Result, Stream};

/// The kernels of calls with positions.
const KERNELS: HeadKernels<PositionedKernel> = HeadKernels {
    halves: Some(HalfSplitKernels {
        kernels: [Some(kernels::rope_positions_d64_warp1), Some(kernels::rope_positions_d128_warp1)],
        together: 4,
        min_columns: 1_024,
    }),
    ..IN_PLACE
};

/// The kernels of calls in which an output is its own input.
const IN_PLACE: HeadKernels<PositionedKernel> = HeadKernels {
    halves: None,
    qk: None,
    block: &[],
    rotated: None,
    warp: &[],
    general: [kernels::rope_positions_block, kernels::rope_positions_any],
    split: HeadSplit::Columns,
};

/// Launches the first kernel that supports the call.
pub(super) fn launch(
    op: &'static str,
    device: &Device,
    checked: &CheckedHeads,
    stream: Stream,
) -> Result<()> {
    let ([q, k], rotary, positions) = (checked.operands, checked.rotary, checked.positions);
    let rotary = PositionedRotary { rotary, positions };
    let kernels = if checked.in_place { &IN_PLACE } else { &KERNELS };
    checked.launch(op, device, kernels, NO_NORM, stream, |kernel, site, p| {
        // SAFETY: the kernel accesses only the tensors that it receives. `CheckedHeads::of` has checked the
        // shape, dtype, strides and device of each of these tensors.
        unsafe { kernel(site, q, k, rotary, p) }
    })
}
