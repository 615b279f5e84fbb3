//! Computes `sum = x + residual` and `y = rms_norm(sum)` in one launch.
use super::rms_norm::{RmsNorm, check, kernel_params};
use crate::launch::{RowKernels, in_registers};
use crate::library::LaunchSite;
use crate::operands::overlap::{expect_disjoint, is_same};
use crate::operands::rows::{Operand, RowLayout};
use crate::plan::ladder::{Ladder, SHORT_ROWS, TWO_OPERANDS};
use crate::plan::row_launch::launch_rows;
use crate::{Device, Result, Stream, View, ViewMut};
use cuda_std::row::Rows;
use kernels_gpu::ops::add_rms_norm::launch;
use kernels_gpu::rms::row::RmsParams;
use kernels_gpu::rms::weight::Weight;

const OP: &str = "add_rms_norm";

const LADDER: Ladder =
    Ladder { short: SHORT_ROWS, in_registers: TWO_OPERANDS, blocks_up_to: u32::MAX, reread: 256 };
/// A function that launches a kernel of this op.
type AddRmsNormKernel = unsafe fn(LaunchSite, Rows, Rows, Weight, Rows, Rows, RmsParams) -> Result<()>;
const KERNELS: RowKernels<AddRmsNormKernel> = RowKernels {
    any: launch::add_rms_norm_any,
    in_registers: &[
        in_registers(2, launch::add_rms_norm_block2),
        in_registers(4, launch::add_rms_norm_block4),
    ],
};

/// The kernels for calls in which an output is `x` or `residual`.
const IN_PLACE: RowKernels<AddRmsNormKernel> = RowKernels {
    any: launch::add_rms_norm_inplace_any,
    in_registers: &[
        in_registers(2, launch::add_rms_norm_inplace_block2),
        in_registers(4, launch::add_rms_norm_inplace_block4),
    ],
};

/// Computes `sum = x + residual`, rounded to the dtype of `x`, and `y = rms_norm(sum)`, with the formula of
/// [`rms_norm`](crate::rms_norm).
///
/// An addition followed by `rms_norm` gives the same bits if rows have at most 32 KiB and operands are
/// aligned to 16 bytes. For longer rows, this op adds the squares in a different order than `rms_norm`, so
/// the bits can differ.
///
/// `x`, `residual`, `y` and `sum` have the same shape and dtype. `weight` has the shape `[columns]`, in this
/// dtype or in f32.
///
/// `y` and `sum` may each be the tensor `x` or `residual` itself, with the same address and strides. The
/// results then have the same bits.
///
/// # Errors
/// Returns the errors of [`rms_norm`](crate::rms_norm). Also fails if `y` or `sum` overlaps any other
/// argument, and is not the same tensor as `x` or `residual`.
pub fn add_rms_norm(
    device: &Device,
    x: View,
    residual: View,
    weight: Option<View>,
    y: ViewMut,
    sum: ViewMut,
    params: RmsNorm,
    stream: Stream,
) -> Result<()> {
    let (y, sum) = (y.as_view(), sum.as_view());
    let mut layout =
        RowLayout::of(OP, device, [("x", &x), ("residual", &residual), ("out", y), ("sum", sum)])?;
    let weight_arg = check(OP, device, &x, weight.as_ref(), params, &mut layout)?;
    let weight = weight.as_ref().map(|weight| ("weight", weight));
    let mut in_place = false;
    for out in [("out", y), ("sum", sum)] {
        let replaces = |input: &Operand| is_same(out.1, input.1);
        let inputs = [("x", &x), ("residual", &residual)];
        in_place |= inputs.iter().any(replaces);
        let [x, residual] = inputs.map(|input| Some(input).filter(|input| !replaces(input)));
        expect_disjoint(OP, out, &[x, residual, weight])?;
    }
    expect_disjoint(OP, ("out", y), &[Some(("sum", sum))])?;
    let kernels = if in_place { &IN_PLACE } else { &KERNELS };
    let rung = LADDER.pick(OP, device, kernels, &layout)?;
    let p = kernel_params(&layout, params, layout.l2_policy(device, rung, &[0, 1]));
    let [x, residual, y, sum] = layout.operands;
    let kernel = rung.kernel(kernels);
    launch_rows(OP, device, rung, None, &layout, stream, |site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, x, residual, weight_arg, y, sum, p) }
    })
}
