//! Gradient of softmax from its result `y`: `dx = y * (dy - sum(dy * y))`.
use super::softmax::kernel_params;
use crate::launch::{RowKernels, in_registers};
use crate::library::LaunchSite;
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::ladder::{Ladder, SHORT_ROWS, TWO_OPERANDS};
use crate::plan::row_launch::launch_rows;
use crate::{Device, Result, Stream, View, ViewMut};
use cuda_std::row::Rows;
use kernels_gpu::ops::softmax_backward::launch;
use kernels_gpu::softmax::online::SoftmaxParams;

const OP: &str = "softmax_backward";

/// Launch configurations by row length. Rows that do not fit in the registers of a block are read twice, by
/// blocks of 512 threads. For such rows, the forward pass uses blocks of 1024 threads. A thread of the
/// backward pass reads two operands, `y` and `dy`, so it needs twice the registers and has twice the loads in
/// flight.
const LADDER: Ladder =
    Ladder { short: SHORT_ROWS, in_registers: TWO_OPERANDS, blocks_up_to: u32::MAX, reread: 512 };
/// A function that launches a kernel of this op.
type SoftmaxBackwardKernel = unsafe fn(LaunchSite, Rows, Rows, Rows, SoftmaxParams) -> Result<()>;
const KERNELS: RowKernels<SoftmaxBackwardKernel> = RowKernels {
    any: launch::softmax_backward_any,
    in_registers: &[
        in_registers(2, launch::softmax_backward_block2),
        in_registers(4, launch::softmax_backward_block4),
    ],
};

/// Computes the gradient of [`softmax`](crate::softmax) from its result `y`: `dx = y * (dy - sum(dy * y))`
/// over the last dimension.
///
/// If `log` is true, `y` is the logarithm of softmax, and `dx = dy - exp(y) * sum(dy)`. In both cases, `dx`
/// is computed in f32 and rounded once.
///
/// `y`, `dy` and `dx` have the same shape and dtype. These tensors must be viewable as `[n, m, columns]`
/// without a copy, with the same `n` and `m`. The bits of a result row do not depend on the other rows.
///
/// # Errors
/// Returns the errors of [`softmax`](crate::softmax).
pub fn softmax_backward(
    device: &Device,
    y: View,
    dy: View,
    dx: ViewMut,
    log: bool,
    stream: Stream,
) -> Result<()> {
    let dx = dx.as_view();
    let layout = RowLayout::of(OP, device, [("y", &y), ("dy", &dy), ("dx", dx)])?;
    expect_disjoint(OP, ("dx", dx), &[Some(("y", &y)), Some(("dy", &dy))])?;
    let rung = LADDER.pick(OP, device, &KERNELS, &layout)?;
    let (p, [y, dy, dx]) = (kernel_params(&layout, log), layout.operands);
    let kernel = rung.kernel(&KERNELS);
    launch_rows(OP, device, rung, None, &layout, stream, |site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, y, dy, dx, p) }
    })
}
