//! Launches of `qk_norm_rope` whose positions choose the rows of the tables.
use kernels_gpu::heads::params::{HeadNormArg, PositionedRotary};
use kernels_gpu::ops::qk_norm_rope_positions::launch as kernels;

use crate::plan::head_kernels::{HalfSplitKernels, HeadKernels, HeadSplit, PositionedKernel, WarpKernel};
use crate::plan::heads::CheckedHeads;
use crate::{Device, Result, Stream};

/// Launches the first kernel that supports the call. `is_layer` says whether the norm is LayerNorm.
pub(super) fn launch(
    op: &'static str,
    device: &Device,
    checked: &CheckedHeads,
    is_layer: bool,
    norm: HeadNormArg,
    stream: Stream,
) -> Result<()> {
    let ([q, k], rotary, positions) = (checked.operands, checked.rotary, checked.positions);
    let rotary = PositionedRotary { rotary, positions };
    let is_fused = norm.fused != 0;
    checked.launch(op, device, &kernels_of(is_layer, is_fused), norm, stream, |kernel, site, p| {
        // SAFETY: the kernel accesses only the tensors that it receives. `CheckedHeads::of` has checked the
        // shape, dtype, strides and device of each of these tensors.
        unsafe { kernel(site, q, k, rotary, p) }
    })
}

/// Returns the kernels of LayerNorm or of RMSNorm. `is_fused` says whether an RMSNorm has the summation order
/// of torch's fused kernel.
fn kernels_of(is_layer: bool, is_fused: bool) -> HeadKernels<PositionedKernel> {
    const LAYER: &[WarpKernel<PositionedKernel>] =
        &[WarpKernel { kernel: kernels::qk_norm_rope_positions_layer_warp1, dim: 128, together: 4 }];
    const RMS: &[WarpKernel<PositionedKernel>] = &[
        WarpKernel { kernel: kernels::qk_norm_rope_positions_rms_warp1, dim: 128, together: 4 },
        WarpKernel { kernel: kernels::qk_norm_rope_positions_rms_warp2, dim: 256, together: 2 },
    ];
    let d64: PositionedKernel = kernels::qk_norm_rope_positions_rms_d64_warp1;
    let d128: PositionedKernel = kernels::qk_norm_rope_positions_rms_d128_warp1;
    // The kernel for 64 columns has only the summation order of torch's fused kernel.
    let halves = [is_fused.then_some(d64), (!is_layer).then_some(d128)];
    HeadKernels {
        halves: Some(HalfSplitKernels { kernels: halves, together: 2, min_columns: 1_536 }),
        qk: None,
        block: &[],
        rotated: None,
        warp: if is_layer { LAYER } else { RMS },
        general: if is_layer {
            [kernels::qk_norm_rope_positions_layer_smem, kernels::qk_norm_rope_positions_layer_any]
        } else {
            [kernels::qk_norm_rope_positions_rms_smem, kernels::qk_norm_rope_positions_rms_any]
        },
        split: HeadSplit::Rows { team: if is_layer || is_fused { 128 } else { 32 }, stages: true },
    }
}
