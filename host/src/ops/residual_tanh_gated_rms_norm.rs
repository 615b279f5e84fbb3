//! The residual connection of the model Mochi: `out = x + rms(branch) * tanh(gate)`. A second function also
//! computes `normed = rms_norm(out) * (1 + scale)`.
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::norm::params::NormParams;
use kernels_gpu::norm::params::OperandForm;
use kernels_gpu::ops::residual_tanh_gated_rms_norm::launch;
use kernels_gpu::ops::residual_tanh_gated_rms_norm::{Scaled, TanhGated};

use super::ada_norm::{AdaNorm, modulated_norm};
use super::norm_gated_residual::{Branch, add_branch};
use crate::library::LaunchSite;
use crate::operands::modulation::{GATE, SCALE, Target};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::vec4_norm::{Access, Norm, NormKernels, NormLaunch, TileKernel, Vec4Launch};
use crate::{Affine, Device, Dtype, Modulation, Result, ScaleShift, Stream, View, ViewMut};

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
/// dtype of the gate. The product is rounded to the dtype of `branch`, and the sum to the dtype of `x`.
///
/// `x`, `branch` and `out` have the same shape, and their last stride is 1. `x` and `out` have the same
/// dtype. The gate broadcasts to this shape, and may have a last dimension of 1. `branch` and the gate have
/// any float dtype.
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
    if is_mixed(&x, &branch, &[&gate]) {
        return mixed_residual(OP, device, [x, branch], gate, out.as_view(), eps, stream);
    }
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
    let (normed, out) = (normed.as_view(), out.as_view());
    if is_mixed(&x, &branch, &[&gate, &scale.value, &scale.table.unwrap_or(gate)]) {
        for operand in [("x", &x), ("x_res", &branch), (GATE[0], &gate), ("out", out)] {
            expect_disjoint(CHAINED, ("normed", normed), &[Some(operand)])?;
        }
        expect_disjoint(CHAINED, ("out", out), &scale.named(SCALE))?;
        check_norm(device, &x, scale, normed)?;
        mixed_residual(CHAINED, device, [x, branch], gate, out, eps, stream)?;
        let by = ScaleShift { scale, shift: None };
        return modulated_norm(
            CHAINED,
            device,
            *out,
            by,
            Affine::default(),
            None,
            normed,
            params(eps),
            stream,
        );
    }
    let gate = Modulation::from(gate);
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

/// Returns whether the operands need the kernels of other ops: a branch of another dtype than `x`, an operand
/// of a 16-bit dtype that `x` does not have, or one with one column.
fn is_mixed(x: &View, branch: &View, operands: &[&View]) -> bool {
    let known = |view: &&View| [x.dtype(), Dtype::F32].contains(&view.dtype());
    let cols = x.shape().last();
    let one_column = |view: &&View| cols != Some(&1) && [None, Some(&1)].contains(&view.shape().last());
    branch.dtype() != x.dtype() || !operands.iter().all(known) || operands.iter().any(one_column)
}

/// Computes the gated residual with a kernel for operands of any dtypes.
fn mixed_residual(
    op: &'static str,
    device: &Device,
    [x, branch]: [View; 2],
    gate: View,
    out: &View,
    eps: f32,
    stream: Stream,
) -> Result<()> {
    let how = Branch { params: params(eps), tanh: true };
    let operands = [("x", &x), ("x_res", &branch)];
    add_branch(op, device, operands, Some(gate), Affine::default(), out, how, stream)
}

/// Checks the operands of the second norm, so that an error occurs before the gated residual is computed.
fn check_norm(device: &Device, x: &View, scale: Modulation, normed: &View) -> Result<()> {
    let target = Target { op: CHAINED, device, x, mixed: true };
    let placed = target.placed(SCALE[0], Some(&scale), None)?;
    normed.expect_dtype(CHAINED, "normed", x.dtype())?;
    let views = [("x", x), ("normed", normed), (SCALE[0], &placed.view)];
    let mut layout = RowLayout::of_columns(CHAINED, device, views, [true, true, placed.has_columns])?;
    let [_, _, rows] = layout.operands;
    target.argument(SCALE, Some(&scale), placed, rows, &mut layout.vec4s)?;
    expect_disjoint(CHAINED, ("normed", normed), &scale.named(SCALE))
}

/// Returns the parameters of Mochi's norm, which rounds once.
fn params(eps: f32) -> AdaNorm {
    AdaNorm { norm: Norm::Rms, eps, exact: false, ..AdaNorm::default() }
}

/// Returns the launch parameters. `of_rows_type` must be true if gate and scale have the dtype of the rows,
/// and the scale has no table (an additional vector). Specialized kernels exist only for such operands.
fn kernels(eps: f32, of_rows_type: bool) -> NormLaunch {
    let form = if of_rows_type { OperandForm::SAME } else { OperandForm::F32 };
    NormLaunch { eps, form, round_each: true, staged_vec4: 1 }
}
