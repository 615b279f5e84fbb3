//! The gated residual of a normalised branch: `out = x + gate * norm(y)`.
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::norm::affine::Affine as AffineArg;
use kernels_gpu::norm::normed_branch::NormedBranch;
use kernels_gpu::norm::params::{NormParams, OperandForm};
use kernels_gpu::ops::norm_gated_residual::launch;

use super::ada_norm::AdaNorm;
use super::rms_norm::Rounding;
use crate::library::LaunchSite;
use crate::operands::mixed::{expect_float, kind_of};
use crate::operands::modulation::{GATE, Target, is_other, modulated_form};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::{Operand, RowLayout, columns};
use crate::plan::vec4_norm::{Norm, NormKernels, NormLaunch, Vec4Launch};
use crate::{Affine, Device, Modulation, Result, Stream, View, ViewMut};

const OP: &str = "norm_gated_residual";
/// A function that launches a kernel of this op.
type NormGatedResidualKernel = unsafe fn(LaunchSite, NormedBranch, AffineArg, NormParams) -> Result<()>;
const LAYER: NormKernels<NormGatedResidualKernel> =
    NormKernels::of(launch::norm_gated_residual_layer_any, launch::norm_gated_residual_layer_smem1);
const RMS: NormKernels<NormGatedResidualKernel> =
    NormKernels::of(launch::norm_gated_residual_rms_any, launch::norm_gated_residual_rms_smem1);
const FUSED_RMS: NormKernels<NormGatedResidualKernel> =
    NormKernels::of(launch::norm_gated_residual_fused_rms_any, launch::norm_gated_residual_fused_rms_smem1);

/// Computes `out = x + gate * norm(y)`, where `norm(y)` may have a weight and a bias. Without a gate,
/// computes `out = x + norm(y)`.
///
/// `x`, `y` and `out` have the same shape, and `x` and `out` the same dtype. The gate broadcasts to this
/// shape, and may have a last dimension of 1. `y`, gate, weight and bias have any float dtype.
///
/// In exact mode, the norm is rounded to the dtype of `y` after the same steps as in
/// [`ada_norm`](crate::ada_norm), and the product with the gate is rounded to this dtype. If weight or bias
/// has another dtype than `y`, neither is rounded. If only the gate has another dtype, the product is not
/// rounded. The sum is always rounded to the dtype of `x`.
///
/// # Errors
/// Returns the errors of [`layer_norm`](crate::layer_norm), also for an invalid `y` or gate.
pub fn norm_gated_residual(
    device: &Device,
    [x, y]: [View; 2],
    gate: Option<View>,
    affine: Affine,
    out: ViewMut,
    params: AdaNorm,
    stream: Stream,
) -> Result<()> {
    let operands = [("x", &x), ("y", &y)];
    add_branch(OP, device, operands, gate, affine, out.as_view(), Branch { params, tanh: false }, stream)
}

/// How the branch of a residual is computed.
#[derive(Clone, Copy)]
pub(super) struct Branch {
    /// The norm and its roundings.
    pub params: AdaNorm,
    /// Whether the factor is `tanh(gate)`, as in Mochi. The norm is then not rounded, and the product is
    /// rounded to the dtype of `y`.
    pub tanh: bool,
}

impl Branch {
    /// Returns whether the norm is rounded, and whether the product with the gate is rounded.
    fn roundings(self, affine: &AffineArg, gate: OperandKind) -> [bool; 2] {
        let norm = self.params.exact && !affine.operands().iter().any(|operand| is_other(operand.kind));
        if self.tanh { [false, true] } else { [norm, norm && !is_other(gate)] }
    }
}

/// Computes [`norm_gated_residual`] for the op `op`. The error messages use the names of `x` and `y` that the
/// caller passes.
pub(super) fn add_branch(
    op: &'static str,
    device: &Device,
    [x, y]: [Operand; 2],
    gate: Option<View>,
    affine: Affine,
    out: &View,
    branch: Branch,
    stream: Stream,
) -> Result<()> {
    columns(op, x.0, x.1)?;
    expect_float(op, y.0, y.1)?;
    y.1.expect_shape(op, y.0, x.1.shape())?;
    out.expect_dtype(op, "out", x.1.dtype())?;
    let (target, gate) = (Target { op, device, x: y.1, mixed: true }, gate.map(Modulation::from));
    let of_gate = target.placed(GATE[0], gate.as_ref(), None)?;
    let views = [x, y, ("out", out), (GATE[0], &of_gate.view)];
    let mut layout = RowLayout::of_columns(op, device, views, [true, true, true, of_gate.has_columns])?;
    // The kernels have the element type of `y`, and stage the rows of `y` in shared memory.
    layout.dtype = y.1.dtype();
    let [x_rows, y_rows, out_rows, gate_rows] = layout.operands;
    let parameters = target.affine(&affine, &mut layout.vec4s)?;
    let gate_arg = target.argument(GATE, gate.as_ref(), of_gate, gate_rows, &mut layout.vec4s)?;
    expect_disjoint(
        op,
        ("out", out),
        &[Some(x), Some(y), gate.as_ref().and_then(|gate| gate.named(GATE)[0])],
    )?;
    expect_disjoint(op, ("out", out), &affine.named())?;
    let [round_each, round_product] = branch.roundings(&parameters, gate_arg.value.kind);
    // The kernels for whole tiles round either after each step, or once, and only to the dtype of `x`.
    let usual = x.1.dtype() == y.1.dtype() && !branch.tanh && (gate.is_none() || round_each == round_product);
    let form = if usual { modulated_form(&parameters, &[&gate_arg]) } else { OperandForm::ANY };
    let norm = NormLaunch { eps: branch.params.eps, form, round_each, staged_vec4: 1 };
    let launch = Vec4Launch::of(op, device, &layout, norm, kernels(branch.params))?;
    let (p, parameters) = (launch.params, target.mixed_affine(parameters));
    let operands = NormedBranch {
        x: x_rows,
        y: y_rows,
        gate: target.mixed_modulation(gate_arg),
        out: out_rows,
        stream: kind_of(x.1.dtype()),
        round_product: u32::from(round_product),
        tanh: u32::from(branch.tanh),
    };
    launch.launch(op, device, &layout, stream, |kernel, site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, operands, parameters, p) }
    })
}

fn kernels(params: AdaNorm) -> NormKernels<NormGatedResidualKernel> {
    match (params.norm, params.rounding) {
        (Norm::Layer, _) => LAYER,
        (Norm::Rms, Rounding::BeforeWeight) => RMS,
        (Norm::Rms, Rounding::Once) => FUSED_RMS,
    }
}
