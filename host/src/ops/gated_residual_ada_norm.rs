//! Computes `sum = x + gate * y` and `normed = norm(sum) * (1 + scale) + shift` in one launch. Both `sum` and
//! `normed` are outputs.
use kernels_gpu::norm::affine::Affine as AffineArg;
use kernels_gpu::norm::affine::Modulated;
use kernels_gpu::norm::gated_residual::GatedResidualArg;
use kernels_gpu::norm::mixed::Mixed;
use kernels_gpu::norm::params::NormParams;
use kernels_gpu::norm::params::OperandForm;
use kernels_gpu::ops::gated_residual_ada_norm::launch;

use super::ada_norm::AdaNorm;
use super::gated_residual::GatedResidual;
use super::rms_norm::Rounding;
use crate::arguments::{Argument, Source};
use crate::library::LaunchSite;
use crate::operands::mixed::{expect_float, needs_mixed};
use crate::operands::modulation::{GATE, SCALE, SHIFT, Target, any_other, modulated_form};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::vec4_norm::{Access, Norm, NormKernels, NormLaunch, TileKernel, Vec4Launch};
use crate::{Affine, Device, Modulation, Result, ScaleShift, Stream, View, ViewMut};

const OP: &str = "gated_residual_ada_norm";
/// A function that launches a kernel of this op.
type GatedResidualAdaNormKernel =
    unsafe fn(LaunchSite, GatedResidualArg, AffineArg, Modulated, NormParams) -> Result<()>;
/// A function that launches a kernel with `mixed` in its name.
type GatedResidualAdaNormMixedKernel =
    unsafe fn(LaunchSite, GatedResidualArg, AffineArg, Modulated, Mixed, NormParams) -> Result<()>;
const LAYER: NormKernels<GatedResidualAdaNormKernel> = NormKernels {
    special: &[
        TileKernel {
            kernel: launch::gated_residual_ada_norm_layer_same_block6,
            access: Access::BlockRegisters(6),
            form: Some(OperandForm::SAME),
        },
        TileKernel {
            kernel: launch::gated_residual_ada_norm_layer_f32_block10,
            access: Access::BlockRegisters(10),
            form: Some(OperandForm::F32),
        },
        TileKernel {
            kernel: launch::gated_residual_ada_norm_layer_warp12,
            access: Access::WarpRegisters(12),
            form: None,
        },
        TileKernel {
            kernel: launch::gated_residual_ada_norm_layer_smem4,
            access: Access::BlockTiles,
            form: None,
        },
    ],
    ..NormKernels::of(launch::gated_residual_ada_norm_layer_any, launch::gated_residual_ada_norm_layer_smem1)
};
const RMS: NormKernels<GatedResidualAdaNormKernel> = NormKernels {
    special: &[
        TileKernel {
            kernel: launch::gated_residual_ada_norm_rms_same_block4,
            access: Access::BlockRegistersStaged(4),
            form: Some(OperandForm::SAME),
        },
        TileKernel {
            kernel: launch::gated_residual_ada_norm_rms_tabled_block4,
            access: Access::BlockRegistersStaged(4),
            form: Some(OperandForm::TABLED),
        },
        TileKernel {
            kernel: launch::gated_residual_ada_norm_rms_smem4,
            access: Access::BlockTiles,
            form: None,
        },
    ],
    ..NormKernels::of(launch::gated_residual_ada_norm_rms_any, launch::gated_residual_ada_norm_rms_smem1)
};

const FUSED_RMS: NormKernels<GatedResidualAdaNormKernel> = NormKernels {
    special: &[TileKernel {
        kernel: launch::gated_residual_ada_norm_fused_rms_smem4,
        access: Access::BlockTiles,
        form: None,
    }],
    ..NormKernels::of(
        launch::gated_residual_ada_norm_fused_rms_any,
        launch::gated_residual_ada_norm_fused_rms_smem1,
    )
};

/// Takes the parameters of both steps, the gated residual and the norm, from the arguments of a call. Both
/// steps get the same flag `exact`, which says whether each operation rounds its result, as in torch.
impl<'t> Argument<'t> for (AdaNorm, GatedResidual) {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        let norm = AdaNorm::take(source)?;
        Ok((norm, GatedResidual { exact: norm.exact, clip: source.bool()? }))
    }
}

/// Computes `sum = x + gate * y` and `normed = ada_norm(sum)` in one launch. `sum` and `normed` are bitwise
/// equal to the results of [`gated_residual`](crate::gated_residual) followed by
/// [`ada_norm`](crate::ada_norm). Without a gate, `sum = x + y`.
///
/// `x`, `y`, `normed` and `sum` have the same shape, and `x`, `normed` and `sum` the same dtype. Gate, scale
/// and shift broadcast to this shape, or are all chosen by an `index`.
///
/// # Errors
/// Returns the errors of `gated_residual` and `ada_norm`. Also fails if the outputs overlap.
pub fn gated_residual_ada_norm(
    device: &Device,
    [x, y]: [View; 2],
    gate: Option<Modulation>,
    by: ScaleShift,
    affine: Affine,
    index: Option<View>,
    [normed, sum]: [ViewMut; 2],
    (params, residual): (AdaNorm, GatedResidual),
    stream: Stream,
) -> Result<()> {
    let (normed, sum) = (normed.as_view(), sum.as_view());
    let target = Target { op: OP, device, x: &x, mixed: true };
    let index_of = target.index(index, &by.scale.value)?;
    let [scale, shift] = target.placed_scale_shift([SCALE, SHIFT], &by, index_of)?;
    let of_gate = target.placed(GATE[0], gate.as_ref(), index_of)?;
    expect_float(OP, "y", &y)?;
    for (arg, view) in [("out", normed), ("sum", sum)] {
        view.expect_dtype(OP, arg, x.dtype())?;
    }
    let views = [
        ("x", &x),
        ("y", &y),
        ("out", normed),
        ("sum", sum),
        (SCALE[0], &scale.view),
        (SHIFT[0], &shift.view),
        (GATE[0], &of_gate.view),
    ];
    let has_columns = [true, true, true, true, scale.has_columns, shift.has_columns, of_gate.has_columns];
    let mut layout = RowLayout::of_columns(OP, device, views, has_columns)?;
    let [x_rows, y_rows, normed_rows, sum_rows, scale_rows, shift_rows, gate_rows] = layout.operands;
    let parameters = target.affine(&affine, &mut layout.vec4s)?;
    let (placed, rows) = ([scale, shift], [scale_rows, shift_rows]);
    let by_arg = target.scale_shift([SCALE, SHIFT], &by, placed, rows, &mut layout.vec4s)?;
    let gate_arg = target.argument(GATE, gate.as_ref(), of_gate, gate_rows, &mut layout.vec4s)?;
    for out in [("out", normed), ("sum", sum)] {
        let index = index.as_ref().map(|index| ("index", index));
        expect_disjoint(OP, out, &[Some(("x", &x)), Some(("y", &y)), index])?;
        expect_disjoint(OP, out, &affine.named())?;
        expect_disjoint(OP, out, &by.named([SCALE, SHIFT]))?;
        expect_disjoint(OP, out, &gate.as_ref().map_or([None; 2], |gate| gate.named(GATE)))?;
    }
    expect_disjoint(OP, ("out", normed), &[Some(("sum", sum))])?;
    let round_each = params.exact && !any_other(&parameters, &[&by_arg]);
    let gated = residual.arg([x_rows, y_rows, sum_rows], gate_arg);
    let mut norm = NormLaunch { eps: params.eps, form: OperandForm::ANY, round_each, staged_vec4: 1 };
    let of_norm = by_arg.operands().into_iter().chain(parameters.operands());
    let needs_mixed = needs_mixed(of_norm.chain([&gate_arg.value, &gate_arg.table]));
    if index.is_some() || y.dtype() != x.dtype() || needs_mixed {
        let launch = Vec4Launch::of(OP, device, &layout, norm, NormKernels::one(mixed_kernel(params)))?;
        let (p, parameters) = (launch.params, target.mixed_affine(parameters));
        let operands = target.mixed(index_of, &y, &gate_arg, residual.exact);
        let gated = GatedResidualArg { gate: target.mixed_modulation(gate_arg), ..gated };
        let out = Modulated { by: target.mixed_scale_shift(by_arg), y: normed_rows };
        return launch.launch(OP, device, &layout, stream, |kernel, site| {
            // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the
            // shape, dtype, strides and device of each of these tensors.
            unsafe { kernel(site, gated, parameters, out, operands, p) }
        });
    }
    // Use the general kernel if the sum is clipped, or if only one of the two steps (gated residual and norm)
    // rounds after each operation. No model makes such calls, so no specialized kernel supports them.
    let usual = !residual.clip && (gate.is_none() || (gated.round_each != 0) == round_each);
    norm.form = match modulated_form(&parameters, &[&by_arg.scale, &by_arg.shift, &gate_arg]) {
        form if usual => form,
        _ => OperandForm::ANY,
    };
    norm.staged_vec4 = 2;
    let kernels = match (params.norm, params.rounding) {
        (Norm::Layer, _) => LAYER,
        (Norm::Rms, Rounding::BeforeWeight) => RMS,
        (Norm::Rms, Rounding::Once) => FUSED_RMS,
    };
    let launch = Vec4Launch::of(OP, device, &layout, norm, kernels)?;
    let (p, out) = (launch.params, Modulated { by: by_arg, y: normed_rows });
    launch.launch(OP, device, &layout, stream, |kernel, site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, gated, parameters, out, p) }
    })
}

/// Returns the kernel for operands of any dtypes, with one column, or chosen by an index.
fn mixed_kernel(params: AdaNorm) -> GatedResidualAdaNormMixedKernel {
    match (params.norm, params.rounding) {
        (Norm::Layer, _) => launch::gated_residual_ada_norm_layer_mixed_any,
        (Norm::Rms, Rounding::BeforeWeight) => launch::gated_residual_ada_norm_rms_mixed_any,
        (Norm::Rms, Rounding::Once) => launch::gated_residual_ada_norm_fused_rms_mixed_any,
    }
}
