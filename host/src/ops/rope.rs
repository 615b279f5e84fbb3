//! Rotary position embedding of queries and keys.

use kernels_gpu::ops::rope::launch;

use super::rope_positions;
use crate::operands::heads::{Heads, HeadsOrder, Shape};
use crate::plan::head_kernels::{HalfSplitKernels, HeadKernel, HeadKernels, HeadSplit, NO_NORM, WarpKernel};
use crate::plan::heads::CheckedHeads;
use crate::{Device, Result, Rope, Stream};

const OP: &str = "rope";

/// Rotates pairs of columns of `q` and `k` by the angles of their tokens (rotary position embedding). `q` or
/// `k` may be absent.
///
/// `q` and `k` have the same batches, tokens, columns and dtype. The numbers of heads of `q` and `k` may
/// differ if all heads of a token have the same angles. The weights and biases in [`Heads`] are ignored,
/// because this op applies no norm. For tensors of shape `[B, S, heads * D]`, `head_dim` is the number D of
/// columns per head.
///
/// Products and sums are computed in f32. [`Rope::exact`] says whether the products are rounded before they
/// are added. If there are no tokens, the call does nothing.
///
/// An output may be its own input, with the same address and strides. The result then has the same bits.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if an output
/// overlaps another argument, and is not the same tensor as its input. [`Error`](crate::Error) lists further
/// errors, such as those of the GPU driver.
pub fn rope(
    device: &Device,
    q: Option<Heads>,
    k: Option<Heads>,
    rope: Rope,
    order: HeadsOrder,
    head_dim: Option<i64>,
    stream: Stream,
) -> Result<()> {
    let shape = Shape { order, head_dim, across: false };
    launch_rope(OP, device, [q.as_ref(), k.as_ref()], Some(&rope), &shape, stream)
}

/// Launches a rotation without a norm. [`rope`] and `qk_norm_rope` call this function.
pub(super) fn launch_rope(
    op: &'static str,
    device: &Device,
    tensors: [Option<&Heads>; 2],
    rope: Option<&Rope>,
    shape: &Shape,
    stream: Stream,
) -> Result<()> {
    let checked = CheckedHeads::of(op, device, tensors, rope, shape, true)?;
    if checked.in_place || !checked.positions.base.is_null() {
        return rope_positions::launch(op, device, &checked, stream);
    }
    let [q, k] = checked.operands;
    let long = checked.operands.iter().any(|operand| operand.cols > 512);
    let halves: [Option<HeadKernel>; 2] = [Some(launch::rope_d64_warp1), Some(launch::rope_d128_warp1)];
    let kernels = HeadKernels {
        halves: Some(HalfSplitKernels { kernels: halves, together: 4, min_columns: 1_024 }),
        qk: None,
        block: &[],
        rotated: Some(launch::rope_qk_warp1),
        warp: &[WarpKernel { kernel: launch::rope_warp1, dim: 128, together: 4 }],
        general: [launch::rope_block, launch::rope_any],
        split: HeadSplit::Rows { team: if long { 128 } else { 32 }, stages: false },
    };
    checked.launch(op, device, &kernels, NO_NORM, stream, |kernel, site, p| {
        // SAFETY: the kernel accesses only the tensors that it receives. `CheckedHeads::of` has checked the
        // shape, dtype, strides and device of each of these tensors.
        unsafe { kernel(site, q, k, checked.rotary, p) }
    })
}
