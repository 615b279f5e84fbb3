//! `y = x * (1 + scale) + shift`.
use kernels_gpu::elementwise::partition::Extent;
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::norm::operand::Operand as OperandArg;
use kernels_gpu::ops::modulate::{ModulateArg, THREADS, launch};

use crate::library::LaunchSite;
use crate::operands::modulation::{SCALE, SHIFT, Target};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::elementwise::Elementwise;
use crate::{Device, Modulation, Result, Stream, View, ViewMut};

const OP: &str = "modulate";
/// A function that launches a kernel of this op.
type ModulateKernel = unsafe fn(LaunchSite, ModulateArg, Extent) -> Result<()>;
/// Two kernels: one for any layout, and one for rows that can be read in 16-byte vectors.
const KERNELS: [ModulateKernel; 2] = [launch::modulate_any, launch::modulate_block1];

/// Computes `y = x * (1 + scale) + shift` in f32 and rounds the result to the dtype of `x`.
///
/// `x` and `y` have the same shape and dtype. Scale and shift broadcast to this shape. Their dtype is the
/// dtype of `x` or f32. After the broadcast, all tensors must be viewable as `[n, m, columns]` without a
/// copy, with the same `n` and `m`. If there are no rows, the call does nothing.
///
/// If `exact` is true, the kernel also rounds `1 + scale` and `x * (1 + scale)`, as torch's separate
/// operators do. If `x` has 16 bits and scale or shift is f32, `exact` has no effect, and the kernel rounds
/// only `y`.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if `y` overlaps
/// another argument. [`Error`](crate::Error) lists further errors, such as those of the GPU driver.
pub fn modulate(
    device: &Device,
    x: View,
    scale: View,
    shift: Option<View>,
    y: ViewMut,
    exact: bool,
    stream: Stream,
) -> Result<()> {
    let (y, target) = (y.as_view(), Target { op: OP, device, x: &x });
    let (scale, shift) = (Modulation::from(scale), shift.map(Modulation::from));
    let scale_view = target.over_rows(SCALE[0], Some(&scale))?;
    let shift_view = target.over_rows(SHIFT[0], shift.as_ref())?;
    y.expect_dtype(OP, "out", x.dtype())?;
    let views = [("x", &x), ("out", y), (SCALE[0], &scale_view), (SHIFT[0], &shift_view)];
    let mut layout = RowLayout::of_mixed(OP, device, views)?;
    let [x_rows, y_rows, scale_rows, shift_rows] = layout.operands;
    let scale_arg = target.modulation(SCALE, &scale, scale_rows, &mut layout.vec4s)?.value;
    let shift_arg = target.optional(SHIFT, shift.as_ref(), shift_rows, &mut layout.vec4s)?.value;
    expect_disjoint(OP, ("out", y), &[Some(("x", &x))])?;
    expect_disjoint(OP, ("out", y), &scale.named(SCALE))?;
    if let Some(shift) = &shift {
        expect_disjoint(OP, ("out", y), &shift.named(SHIFT))?;
    }
    let is_f32 = |operand: &OperandArg| operand.kind == OperandKind::F32;
    let round_each = u32::from(exact && !is_f32(&scale_arg) && !is_f32(&shift_arg));
    let arg = ModulateArg { x: x_rows, scale: scale_arg, shift: shift_arg, y: y_rows, round_each };
    let launch = Elementwise::of_rows(OP, layout)?;
    launch.launch(device, KERNELS, THREADS, stream, |kernel, site, extent| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, arg, extent) }
    })
}
