//! `y = x * (1 + scale) + shift`.
use kernels_gpu::elementwise::partition::Extent;
use kernels_gpu::norm::mixed::Mixed;
use kernels_gpu::norm::operand::Modulation as ModulationArg;
use kernels_gpu::norm::params::NormParams;
use kernels_gpu::ops::modulate::{ModulateArg, THREADS, launch};

use crate::library::LaunchSite;
use crate::operands::mixed::needs_mixed;
use crate::operands::modulation::{SCALE, SHIFT, Target, is_other};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::elementwise::Elementwise;
use crate::plan::vec4_norm::{NormKernels, NormLaunch, Vec4Launch};
use crate::{Device, Modulation, Result, Stream, View, ViewMut};

const OP: &str = "modulate";
/// A function that launches a kernel of this op.
type ModulateKernel = unsafe fn(LaunchSite, ModulateArg, Extent) -> Result<()>;
/// Two kernels: one for any layout, and one for rows that can be read in 16-byte vectors.
const KERNELS: [ModulateKernel; 2] = [launch::modulate_any, launch::modulate_block1];
/// A function that launches a kernel with `mixed` in its name.
type ModulateMixedKernel = unsafe fn(LaunchSite, ModulateArg, Mixed, NormParams) -> Result<()>;
/// The kernel for operands of any dtypes, with one column, or chosen by an index.
const MIXED: NormKernels<ModulateMixedKernel> = NormKernels::one(launch::modulate_mixed_any);

/// Computes `y = x * (1 + scale) + shift` in f32 and rounds the result to the dtype of `x`.
///
/// `x` and `y` have the same shape and dtype. Scale and shift have any float dtype. They broadcast to this
/// shape, may have a last dimension of 1, and may be chosen by an `index`, as in
/// [`ada_norm`](crate::ada_norm). After the broadcast, all tensors must be viewable as `[n, m, columns]`
/// without a copy, with the same `n` and `m`. If there are no rows, the call does nothing.
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
    index: Option<View>,
    y: ViewMut,
    exact: bool,
    stream: Stream,
) -> Result<()> {
    let (y, target) = (y.as_view(), Target { op: OP, device, x: &x, mixed: true });
    let (scale, shift) = (Modulation::from(scale), shift.map(Modulation::from));
    let index_of = target.index(index, &scale.value)?;
    let of_scale = target.placed(SCALE[0], Some(&scale), index_of)?;
    let of_shift = target.placed(SHIFT[0], shift.as_ref(), index_of)?;
    y.expect_dtype(OP, "out", x.dtype())?;
    let views = [("x", &x), ("out", y), (SCALE[0], &of_scale.view), (SHIFT[0], &of_shift.view)];
    let has_columns = [true, true, of_scale.has_columns, of_shift.has_columns];
    let mut layout = RowLayout::of_columns(OP, device, views, has_columns)?;
    let [x_rows, y_rows, scale_rows, shift_rows] = layout.operands;
    let scale_arg = target.argument(SCALE, Some(&scale), of_scale, scale_rows, &mut layout.vec4s)?.value;
    let shift_arg = target.argument(SHIFT, shift.as_ref(), of_shift, shift_rows, &mut layout.vec4s)?.value;
    expect_disjoint(OP, ("out", y), &[Some(("x", &x)), index.as_ref().map(|index| ("index", index))])?;
    expect_disjoint(OP, ("out", y), &scale.named(SCALE))?;
    if let Some(shift) = &shift {
        expect_disjoint(OP, ("out", y), &shift.named(SHIFT))?;
    }
    let round_each = u32::from(exact && !is_other(scale_arg.kind) && !is_other(shift_arg.kind));
    let arg = ModulateArg { x: x_rows, scale: scale_arg, shift: shift_arg, y: y_rows, round_each };
    if index.is_some() || needs_mixed([&scale_arg, &shift_arg]) {
        let [scale, shift] = [scale_arg, shift_arg].map(|operand| target.mixed_operand(operand));
        let operands = target.mixed(index_of, &x, &ModulationArg::ABSENT, false);
        let arg = ModulateArg { scale, shift, ..arg };
        let launch = Vec4Launch::of(OP, device, &layout, NormLaunch::ELEMENTWISE, MIXED)?;
        let p = launch.params;
        return launch.launch(OP, device, &layout, stream, |kernel, site| {
            // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the
            // shape, dtype, strides and device of each of these tensors.
            unsafe { kernel(site, arg, operands, p) }
        });
    }
    let launch = Elementwise::of_rows(OP, layout)?;
    launch.launch(device, KERNELS, THREADS, stream, |kernel, site, extent| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, arg, extent) }
    })
}
