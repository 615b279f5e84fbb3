//! Rotary position embedding of queries and keys.

use crate::operands::heads::{Heads, HeadsOrder, Shape};
use crate::plan::head_kernels::{HalfSplitKernels, HeadKernels, WarpKernel};
use crate::plan::heads::CheckedHeads;
use crate::{Device, Result, Rope, Stream};
use kernels_gpu::heads::params::HeadNormArg;

const OP: &str = "rope";

/// The kernel argument for no norm.
pub(super) const NO_NORM: HeadNormArg = HeadNormArg { eps: 0.0, fused: 0, before_weight: 0, round: 0 };

/// Rotates pairs of columns of `q` and `k` by the angles of their tokens (rotary position embedding). `q` or
/// `k` may be absent.
///
/// Both have the same batches, tokens, columns and dtype; heads may differ in number where the tables do not tell them
/// apart. The parameters of a norm are not looked at. `head_dim` is the number of columns of a head in tensors of three
/// dimensions. Products and sum are in f32; where they are rounded, [`Rope::exact`] says. With no tokens nothing happens.
///
/// # Errors
/// Shapes, dtypes or strides that do not fit, an output that overlaps another argument: nothing is written.
/// See [`Error`](crate::Error) for the rest.
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
    launch(OP, device, [q.as_ref(), k.as_ref()], Some(&rope), &shape, stream)
}

/// Launches only the rotation, for [`rope`] and for `qk_norm_rope` without a norm.
pub(super) fn launch(
    op: &'static str,
    device: &Device,
    tensors: [Option<&Heads>; 2],
    rope: Option<&Rope>,
    shape: &Shape,
    stream: Stream,
) -> Result<()> {
    let checked = CheckedHeads::of(op, device, tensors, rope, shape)?;
    let long = checked.operands.iter().any(|operand| operand.cols > 512);
    let names = [Some("rope_d64_warp1"), Some("rope_d128_warp1")];
    let kernels = HeadKernels {
        halves: Some(HalfSplitKernels { names, together: 4, min_columns: 1_024 }),
        qk: None,
        block: &[],
        rotated: Some("rope_qk_warp1"),
        warp: &[WarpKernel { name: "rope_warp1", dim: 128, together: 4 }],
        rows: "rope_block",
        any: "rope_any",
        team: if long { 128 } else { 32 },
        stages: false,
    };
    checked.launch(op, device, &kernels, NO_NORM, stream)
}
