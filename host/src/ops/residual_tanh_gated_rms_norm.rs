//! The residual connection of the model Mochi: `out = x + rms(branch) * tanh(gate)`. A second function also
//! computes `normed = rms_norm(out) * (1 + scale)`.
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::norm::params::NormParams;
use kernels_gpu::norm::params::OperandForm;
use kernels_gpu::ops::residual_tanh_gated_rms_norm::launch;
use kernels_gpu::ops::residual_tanh_gated_rms_norm::{Scaled, TanhGated};

use crate::library::LaunchSite;
use crate::operands::modulation::{GATE, SCALE, Target};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::vec4_norm::{Access, NormKernels, NormLaunch, TileKernel, Vec4Launch};
use crate::{Device, Modulation, Result, Stream, View, ViewMut};

const OP: &str = "residual_tanh_gated_rms_norm";
const CHAINED: &str = "residual_tanh_gated_rms_norm_modulated";
/// A function that launches a kernel of this op.
type TanhGatedKernel = unsafe fn(LaunchSite, TanhGated, NormParams) -> Result<()>;
/// A function that launches a kernel of [`residual_tanh_gated_rms_norm_modulated`].
type ChainedKernel = unsafe fn(LaunchSite, TanhGated, Scaled, NormParams) -> Result<()>;
const KERNELS: NormKernels<TanhGatedKernel> = NormKernels {
    special: &[TileKernel {
        kernel: launch::residual_tanh_gated_rms_norm_block6,
        access: Access::BlockRegistersStaged(6),
        form: Some(OperandForm::SAME),
    }],
    ..NormKernels::one(launch::residual_tanh_gated_rms_norm_any)
};
const CHAINED_KERNELS: NormKernels<ChainedKernel> = NormKernels {
    special: &[TileKernel {
        kernel: launch::residual_tanh_gated_rms_norm_modulated_block6,
        access: Access::BlockRegistersStaged(6),
        form: Some(OperandForm::SAME),
    }],
    ..NormKernels::one(launch::residual_tanh_gated_rms_norm_modulated_any)
};

/// Computes `out = x + rms(branch) * tanh(gate)` and rounds after the same steps as the modules of the model
/// Mochi. `branch` is the output of attention or of the feed-forward network. `tanh(gate)` is rounded to the
/// dtype of the gate. The product and the sum are rounded to the dtype of `x`.
///
/// `x`, `branch` and `out` have the same shape and dtype, and their last stride is 1. The gate broadcasts to
/// this shape, in this dtype or in f32.
///
/// # Errors
/// Returns the errors of [`layer_norm`](crate::layer_norm), also for an invalid `branch` or gate.
pub fn residual_tanh_gated_rms_norm(
    device: &Device,
    [x, branch]: [View; 2],
    gate: View,
    out: ViewMut,
    eps: f32,
    stream: Stream,
) -> Result<()> {
    let (out, target, gate) =
        (out.as_view(), Target { op: OP, device, x: &x, mixed: false }, Modulation::from(gate));
    let over_rows = target.over_rows(GATE[0], Some(&gate))?;
    branch.expect_dtype(OP, "x_res", x.dtype())?;
    out.expect_dtype(OP, "out", x.dtype())?;
    let views = [("x", &x), ("x_res", &branch), ("out", out), (GATE[0], &over_rows)];
    let mut layout = RowLayout::of_mixed(OP, device, views)?;
    let [x_rows, branch_rows, out_rows, gate_rows] = layout.operands;
    let gate_arg = target.modulation(GATE, &gate, gate_rows, &mut layout.vec4s)?.value;
    expect_disjoint(OP, ("out", out), &[Some(("x", &x)), Some(("x_res", &branch)), gate.named(GATE)[0]])?;
    let kernels = kernels(eps, gate_arg.kind == OperandKind::SAME);
    let launch = Vec4Launch::of(OP, device, &layout, kernels, KERNELS)?;
    let (p, gated) =
        (launch.params, TanhGated { x: x_rows, branch: branch_rows, gate: gate_arg, out: out_rows });
    launch.launch(OP, device, &layout, stream, |kernel, site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, gated, p) }
    })
}

/// Computes [`residual_tanh_gated_rms_norm`] and `normed = rms_norm(out) * (1 + scale)` in one launch.
/// `normed` is computed in f32 from the rounded `out`, and rounded once. `out` and `normed` are bitwise equal
/// to the results of two separate ops.
///
/// # Errors
/// Returns the errors of [`residual_tanh_gated_rms_norm`]. Also fails if the outputs overlap.
pub fn residual_tanh_gated_rms_norm_modulated(
    device: &Device,
    [x, branch]: [View; 2],
    gate: View,
    scale: Modulation,
    [normed, out]: [ViewMut; 2],
    eps: f32,
    stream: Stream,
) -> Result<()> {
    let (normed, out, gate) = (normed.as_view(), out.as_view(), Modulation::from(gate));
    let target = Target { op: CHAINED, device, x: &x, mixed: false };
    let gate_over_rows = target.over_rows(GATE[0], Some(&gate))?;
    let scale_over_rows = target.over_rows(SCALE[0], Some(&scale))?;
    for (arg, view) in [("x_res", &branch), ("normed", normed), ("out", out)] {
        view.expect_dtype(CHAINED, arg, x.dtype())?;
    }
    let views = [
        ("x", &x),
        ("x_res", &branch),
        ("normed", normed),
        ("out", out),
        (GATE[0], &gate_over_rows),
        (SCALE[0], &scale_over_rows),
    ];
    let mut layout = RowLayout::of_mixed(CHAINED, device, views)?;
    let [x_rows, branch_rows, normed_rows, out_rows, gate_rows, scale_rows] = layout.operands;
    let gate_arg = target.modulation(GATE, &gate, gate_rows, &mut layout.vec4s)?.value;
    let scale_arg = target.modulation(SCALE, &scale, scale_rows, &mut layout.vec4s)?;
    for output in [("out", out), ("normed", normed)] {
        expect_disjoint(CHAINED, output, &[Some(("x", &x)), Some(("x_res", &branch)), gate.named(GATE)[0]])?;
        expect_disjoint(CHAINED, output, &scale.named(SCALE))?;
    }
    expect_disjoint(CHAINED, ("normed", normed), &[Some(("out", out))])?;
    let of_rows_type = [&gate_arg, &scale_arg.value].iter().all(|operand| operand.kind == OperandKind::SAME);
    let kernels = kernels(eps, of_rows_type && scale_arg.table.kind == OperandKind::ABSENT);
    let launch = Vec4Launch::of(CHAINED, device, &layout, kernels, CHAINED_KERNELS)?;
    let p = launch.params;
    let gated = TanhGated { x: x_rows, branch: branch_rows, gate: gate_arg, out: out_rows };
    let scaled = Scaled { scale: scale_arg, normed: normed_rows };
    launch.launch(CHAINED, device, &layout, stream, |kernel, site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, gated, scaled, p) }
    })
}

/// Returns the launch parameters. `of_rows_type` must be true if gate and scale have the dtype of the rows,
/// and the scale has no table (an additional vector). Specialized kernels exist only for such operands.
fn kernels(eps: f32, of_rows_type: bool) -> NormLaunch {
    let form = if of_rows_type { OperandForm::SAME } else { OperandForm::F32 };
    NormLaunch { eps, form, round_each: true, staged_vec4: 1 }
}
