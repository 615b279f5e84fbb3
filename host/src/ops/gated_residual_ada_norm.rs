//! Computes `sum = x + gate * y` and `normed = norm(sum) * (1 + scale) + shift` in one launch. Both `sum` and
//! `normed` are outputs.
use kernels_gpu::norm::affine::Affine as AffineArg;
use kernels_gpu::norm::affine::Modulated;
use kernels_gpu::norm::gated_residual::GatedResidualArg;
use kernels_gpu::norm::params::NormParams;
use kernels_gpu::norm::params::OperandForm;
use kernels_gpu::ops::gated_residual_ada_norm::launch;

use super::ada_norm::AdaNorm;
use super::gated_residual::GatedResidual;
use crate::arguments::{Argument, Source};
use crate::library::LaunchSite;
use crate::operands::modulation::{GATE, SCALE, SHIFT, Target, any_f32, modulated_form};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::vec4_norm::{Access, Norm, NormKernels, NormLaunch, TileKernel, Vec4Launch};
use crate::{Affine, Device, Modulation, Result, ScaleShift, Stream, View, ViewMut};

const OP: &str = "gated_residual_ada_norm";
/// A function that launches a kernel of this op.
type GatedResidualAdaNormKernel =
    unsafe fn(LaunchSite, GatedResidualArg, AffineArg, Modulated, NormParams) -> Result<()>;
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

/// Takes the parameters of both steps, the gated residual and the norm, from the arguments of a call. Both
/// steps get the same flag `exact`.
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
/// `x`, `y`, `normed` and `sum` have the same shape and dtype. Gate, scale and shift broadcast to this shape.
///
/// # Errors
/// Returns the errors of `gated_residual` and `ada_norm`. Also fails if the outputs overlap.
pub fn gated_residual_ada_norm(
    device: &Device,
    [x, y]: [View; 2],
    gate: Option<Modulation>,
    by: ScaleShift,
    affine: Affine,
    [normed, sum]: [ViewMut; 2],
    (params, residual): (AdaNorm, GatedResidual),
    stream: Stream,
) -> Result<()> {
    let (normed, sum, target) = (normed.as_view(), sum.as_view(), Target { op: OP, device, x: &x });
    let (scale, shift) = target.both_over_rows([SCALE, SHIFT], &by)?;
    let gate_over_rows = target.over_rows(GATE[0], gate.as_ref())?;
    for (arg, view) in [("y", &y), ("out", normed), ("sum", sum)] {
        view.expect_dtype(OP, arg, x.dtype())?;
    }
    let views = [
        ("x", &x),
        ("y", &y),
        ("out", normed),
        ("sum", sum),
        (SCALE[0], &scale),
        (SHIFT[0], &shift),
        (GATE[0], &gate_over_rows),
    ];
    let mut layout = RowLayout::of_mixed(OP, device, views)?;
    let [x_rows, y_rows, normed_rows, sum_rows, scale_rows, shift_rows, gate_rows] = layout.operands;
    let parameters = target.affine(&affine, &mut layout.vec4s)?;
    let by_arg = target.scale_shift([SCALE, SHIFT], &by, [scale_rows, shift_rows], &mut layout.vec4s)?;
    let gate_arg = target.optional(GATE, gate.as_ref(), gate_rows, &mut layout.vec4s)?;
    for out in [("out", normed), ("sum", sum)] {
        expect_disjoint(OP, out, &[Some(("x", &x)), Some(("y", &y))])?;
        expect_disjoint(OP, out, &affine.named())?;
        expect_disjoint(OP, out, &by.named([SCALE, SHIFT]))?;
        expect_disjoint(OP, out, &gate.as_ref().map_or([None; 2], |gate| gate.named(GATE)))?;
    }
    expect_disjoint(OP, ("out", normed), &[Some(("sum", sum))])?;
    let round_each = params.exact && !any_f32(&parameters, &[&by_arg]);
    let gated = residual.arg([x_rows, y_rows, sum_rows], gate_arg);
    // Use the general kernel if the sum is clamped, or if only one of the two steps (gated residual and norm)
    // rounds after each operation. No specialized kernel supports such calls, because no known model makes
    // them.
    let usual = !residual.clip && (gate.is_none() || (gated.round_each != 0) == round_each);
    let form = match modulated_form(&parameters, &[&by_arg.scale, &by_arg.shift, &gate_arg]) {
        form if usual => form,
        _ => OperandForm::ANY,
    };
    let norm = NormLaunch { eps: params.eps, form, round_each, staged_vec4: 2 };
    let kernels = match params.norm {
        Norm::Layer => LAYER,
        Norm::Rms => RMS,
    };
    let launch = Vec4Launch::of(OP, device, &layout, norm, kernels)?;
    let (p, out) = (launch.params, Modulated { by: by_arg, y: normed_rows });
    launch.launch(OP, device, &layout, stream, |kernel, site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, gated, parameters, out, p) }
    })
}
