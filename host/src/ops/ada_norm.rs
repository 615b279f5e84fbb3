//! The modulated norm of diffusion transformers: `y = norm(x) * (1 + scale) + shift`. A call has one or two
//! pairs of scale and shift, and returns one result `y` per pair.
use cuda_std::row::Rows;
use kernels_gpu::norm::affine::Affine as AffineArg;
use kernels_gpu::norm::affine::Modulated;
use kernels_gpu::norm::mixed::Mixed;
use kernels_gpu::norm::operand::Modulation as ModulationArg;
use kernels_gpu::norm::params::NormParams;
use kernels_gpu::norm::params::OperandForm;
use kernels_gpu::ops::ada_norm::launch;

use super::rms_norm::Rounding;
use crate::arguments::arguments;
use crate::library::LaunchSite;
use crate::operands::mixed::needs_mixed;
use crate::operands::modulation::{ModulationNames, SCALE, SHIFT, Target, any_other, modulated_form};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::vec4_norm::{Access, Norm, NormKernels, NormLaunch, TileKernel, Vec4Launch};
use crate::{Affine, Device, Dtype, Result, ScaleShift, Stream, View, ViewMut};

arguments! {
    /// The parameters of a modulated norm.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct AdaNorm {
        /// The norm.
        pub norm: Norm,
        /// Epsilon, which is added to the variance (LayerNorm) or to the mean of squares (RMSNorm). Epsilon
        /// must be 0 or more.
        pub eps: f32,
        /// If true, round to the dtype of `x` after every step, as torch's separate operators do. If false,
        /// round only at the end. The field has no effect if `x` has 16 bits and a scale, shift, weight or
        /// bias is f32. In this case, the kernel rounds only at the end.
        pub exact: bool,
        /// The steps after which an RMSNorm rounds. `Once`: after the multiplication by the weight, with the
        /// order of summation of `torch.nn.RMSNorm`. `BeforeWeight`: also before this multiplication, with
        /// the order of summation of `x.float().pow(2).mean(-1)`. If `exact` is false, the field selects only
        /// the order of summation. It has no effect on LayerNorm.
        pub rounding: Rounding = Rounding::BeforeWeight,
    }
}

impl Default for AdaNorm {
    fn default() -> Self {
        Self { norm: Norm::Layer, eps: 1e-6, exact: true, rounding: Rounding::BeforeWeight }
    }
}

const OP: &str = "ada_norm";
const PAIR: &str = "ada_norm_pair";
/// A function that launches a kernel of this op.
type AdaNormKernel = unsafe fn(LaunchSite, Rows, AffineArg, Modulated, NormParams) -> Result<()>;
/// A function that launches a kernel with `mixed` in its name.
type AdaNormMixedKernel = unsafe fn(LaunchSite, Rows, AffineArg, Modulated, Mixed, NormParams) -> Result<()>;
/// A function that launches a kernel of [`ada_norm_pair`].
type PairKernel = unsafe fn(LaunchSite, Rows, AffineArg, Modulated, Modulated, NormParams) -> Result<()>;
const LAYER_SAME_WARP12: TileKernel<AdaNormKernel> = TileKernel {
    kernel: launch::ada_norm_layer_same_warp12,
    access: Access::WarpRegisters(12),
    form: Some(OperandForm::SAME),
};
const LAYER_SAME_BLOCK6: TileKernel<AdaNormKernel> = TileKernel {
    kernel: launch::ada_norm_layer_same_block6,
    access: Access::BlockRegisters(6),
    form: Some(OperandForm::SAME),
};
const LAYER: NormKernels<AdaNormKernel> = NormKernels {
    special: &[
        LAYER_SAME_WARP12,
        TileKernel {
            kernel: launch::ada_norm_layer_f32_warp12,
            access: Access::WarpRegisters(12),
            form: Some(OperandForm::F32),
        },
        LAYER_SAME_BLOCK6,
        TileKernel {
            kernel: launch::ada_norm_layer_affine_block6,
            access: Access::BlockRegisters(6),
            form: Some(OperandForm::AFFINE),
        },
        TileKernel {
            kernel: launch::ada_norm_layer_f32_block10,
            access: Access::BlockRegisters(10),
            form: Some(OperandForm::F32),
        },
    ],
    ..NormKernels::of(launch::ada_norm_layer_any, launch::ada_norm_layer_smem1)
};
/// Kernels for f32 rows. The two kernels in `special` keep a row in registers. They require that scale and
/// shift are also f32, and support neither a weight nor a bias.
const LAYER_F32: NormKernels<AdaNormKernel> =
    NormKernels { special: &[LAYER_SAME_WARP12, LAYER_SAME_BLOCK6], ..LAYER };
const RMS: NormKernels<AdaNormKernel> = NormKernels {
    special: &[
        TileKernel {
            kernel: launch::ada_norm_rms_same_block4,
            access: Access::BlockRegistersStaged(4),
            form: Some(OperandForm::SAME),
        },
        TileKernel {
            kernel: launch::ada_norm_rms_tabled_block4,
            access: Access::BlockRegistersStaged(4),
            form: Some(OperandForm::TABLED),
        },
    ],
    ..NormKernels::of(launch::ada_norm_rms_any, launch::ada_norm_rms_smem1)
};
const FUSED_RMS: NormKernels<AdaNormKernel> =
    NormKernels::of(launch::ada_norm_fused_rms_any, launch::ada_norm_fused_rms_smem1);
const SCALE2: ModulationNames = ["scale2", "scale2_table"];
const SHIFT2: ModulationNames = ["shift2", "shift2_table"];

/// Computes `y = (norm(x) * weight + bias) * (1 + scale) + shift` over the last dimension.
///
/// `x` and `y` have the same shape and dtype. Scale and shift broadcast to this shape, and may have a last
/// dimension of 1. All other operands have any float dtype. With an `index`, which has one integer for each
/// row of `x`, the rows of scale and shift are chosen from tensors `[rows, columns]`. A larger or negative
/// integer chooses the last row. After the broadcast, `x`, `y`, scale and shift must be viewable as `[n, m,
/// columns]` without a copy, with the same `n` and `m`.
///
/// If the number of columns is divisible by 4, the result of LayerNorm is bitwise equal to the result of
/// torch's LayerNorm. The result of RMSNorm with [`Rounding::Once`] is then bitwise equal to the result of
/// `torch.nn.RMSNorm`. With [`Rounding::BeforeWeight`], and with 16 rows or more and 128 to 8128 columns, the
/// result of RMSNorm is bitwise equal to `x * rsqrt(x.float().pow(2).mean(-1) + eps)`. The bits of a result
/// row do not depend on the other rows.
///
/// # Errors
/// Returns the errors of [`layer_norm`](crate::layer_norm), also for an invalid scale, shift, weight or bias.
pub fn ada_norm(
    device: &Device,
    x: View,
    by: ScaleShift,
    affine: Affine,
    index: Option<View>,
    y: ViewMut,
    params: AdaNorm,
    stream: Stream,
) -> Result<()> {
    modulated_norm(OP, device, x, by, affine, index, y.as_view(), params, stream)
}

/// Computes [`ada_norm`] for the op `op`.
pub(super) fn modulated_norm(
    op: &'static str,
    device: &Device,
    x: View,
    by: ScaleShift,
    affine: Affine,
    index: Option<View>,
    y: &View,
    params: AdaNorm,
    stream: Stream,
) -> Result<()> {
    let target = Target { op, device, x: &x, mixed: true };
    let index_of = target.index(index, &by.scale.value)?;
    let [scale, shift] = target.placed_scale_shift([SCALE, SHIFT], &by, index_of)?;
    y.expect_dtype(op, "out", x.dtype())?;
    let views = [("x", &x), ("out", y), (SCALE[0], &scale.view), (SHIFT[0], &shift.view)];
    let has_columns = [true, true, scale.has_columns, shift.has_columns];
    let mut layout = RowLayout::of_columns(op, device, views, has_columns)?;
    let [x_rows, y_rows, scale_rows, shift_rows] = layout.operands;
    let parameters = target.affine(&affine, &mut layout.vec4s)?;
    let (placed, rows) = ([scale, shift], [scale_rows, shift_rows]);
    let by_arg = target.scale_shift([SCALE, SHIFT], &by, placed, rows, &mut layout.vec4s)?;
    expect_disjoint(op, ("out", y), &[Some(("x", &x)), index.as_ref().map(|index| ("index", index))])?;
    expect_disjoint(op, ("out", y), &affine.named())?;
    expect_disjoint(op, ("out", y), &by.named([SCALE, SHIFT]))?;
    let round_each = params.exact && !any_other(&parameters, &[&by_arg]);
    let mut norm = NormLaunch { eps: params.eps, form: OperandForm::ANY, round_each, staged_vec4: 1 };
    if index.is_some() || needs_mixed(by_arg.operands().into_iter().chain(parameters.operands())) {
        let launch = Vec4Launch::of(op, device, &layout, norm, NormKernels::one(mixed_kernel(params)))?;
        let (p, operands) = (launch.params, target.mixed(index_of, &x, &ModulationArg::ABSENT, false));
        let parameters = target.mixed_affine(parameters);
        let out = Modulated { by: target.mixed_scale_shift(by_arg), y: y_rows };
        return launch.launch(op, device, &layout, stream, |kernel, site| {
            // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the
            // shape, dtype, strides and device of each of these tensors.
            unsafe { kernel(site, x_rows, parameters, out, operands, p) }
        });
    }
    norm.form = modulated_form(&parameters, &[&by_arg.scale, &by_arg.shift]);
    let kernels = match (params.norm, params.rounding) {
        (Norm::Layer, _) if x.dtype() == Dtype::F32 => LAYER_F32,
        (Norm::Layer, _) => LAYER,
        (Norm::Rms, Rounding::BeforeWeight) => RMS,
        (Norm::Rms, Rounding::Once) => FUSED_RMS,
    };
    let launch = Vec4Launch::of(op, device, &layout, norm, kernels)?;
    let (p, out) = (launch.params, Modulated { by: by_arg, y: y_rows });
    launch.launch(op, device, &layout, stream, |kernel, site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, x_rows, parameters, out, p) }
    })
}

/// Returns the kernel for operands of any dtypes, with one column, or chosen by an index.
fn mixed_kernel(params: AdaNorm) -> AdaNormMixedKernel {
    match (params.norm, params.rounding) {
        (Norm::Layer, _) => launch::ada_norm_layer_mixed_any,
        (Norm::Rms, Rounding::BeforeWeight) => launch::ada_norm_rms_mixed_any,
        (Norm::Rms, Rounding::Once) => launch::ada_norm_fused_rms_mixed_any,
    }
}

/// Computes two results of [`ada_norm`] from the same norm, with two pairs of scale and shift. The second
/// result is `y2 = (norm(x) * weight + bias) * (1 + scale2) + shift2`.
///
/// # Errors
/// Returns the errors of [`ada_norm`]. Also fails if the outputs overlap.
pub fn ada_norm_pair(
    device: &Device,
    x: View,
    [by, by2]: [ScaleShift; 2],
    affine: Affine,
    [y, y2]: [ViewMut; 2],
    params: AdaNorm,
    stream: Stream,
) -> Result<()> {
    let (y, y2, target) = (y.as_view(), y2.as_view(), Target { op: PAIR, device, x: &x, mixed: true });
    let [scale, shift] = target.placed_scale_shift([SCALE, SHIFT], &by, None)?;
    let [scale2, shift2] = target.placed_scale_shift([SCALE2, SHIFT2], &by2, None)?;
    y.expect_dtype(PAIR, "out", x.dtype())?;
    y2.expect_dtype(PAIR, "out2", x.dtype())?;
    let views = [
        ("x", &x),
        ("out", y),
        ("out2", y2),
        (SCALE[0], &scale.view),
        (SHIFT[0], &shift.view),
        (SCALE2[0], &scale2.view),
        (SHIFT2[0], &shift2.view),
    ];
    let [a, b, c, d] = [scale, shift, scale2, shift2].map(|placed| placed.has_columns);
    let mut layout = RowLayout::of_columns(PAIR, device, views, [true, true, true, a, b, c, d])?;
    let [x_rows, y_rows, y2_rows, rows @ ..] = layout.operands;
    let parameters = target.affine(&affine, &mut layout.vec4s)?;
    let (placed, placed2) = ([scale, shift], [scale2, shift2]);
    let by_arg = target.scale_shift([SCALE, SHIFT], &by, placed, [rows[0], rows[1]], &mut layout.vec4s)?;
    let by2_arg =
        target.scale_shift([SCALE2, SHIFT2], &by2, placed2, [rows[2], rows[3]], &mut layout.vec4s)?;
    for out in [("out", y), ("out2", y2)] {
        expect_disjoint(PAIR, out, &[Some(("x", &x))])?;
        expect_disjoint(PAIR, out, &affine.named())?;
        expect_disjoint(PAIR, out, &by.named([SCALE, SHIFT]))?;
        expect_disjoint(PAIR, out, &by2.named([SCALE2, SHIFT2]))?;
    }
    expect_disjoint(PAIR, ("out", y), &[Some(("out2", y2))])?;
    let operands = by_arg.operands().into_iter().chain(by2_arg.operands());
    if needs_mixed(operands.chain(parameters.operands())) {
        // There is no kernel with two outputs for such operands, because no model computes them. As in the
        // kernels with two outputs, an operand of another dtype decides about the roundings of both.
        let exact = params.exact && !any_other(&parameters, &[&by_arg, &by2_arg]);
        let params = AdaNorm { exact, ..params };
        modulated_norm(PAIR, device, x, by, affine, None, y, params, stream)?;
        return modulated_norm(PAIR, device, x, by2, affine, None, y2, params, stream);
    }
    let round_each = params.exact && !any_other(&parameters, &[&by_arg, &by2_arg]);
    let modulations = [&by_arg.scale, &by_arg.shift, &by2_arg.scale, &by2_arg.shift];
    // The kernel for whole tiles requires scales and shifts in the dtype of `x`. It supports no weight, no
    // bias and no tables (additional vectors that are added to scale and shift). For all other operands, use
    // the general kernel. It is the only kernel with the roundings of `torch.nn.RMSNorm`, because no model
    // computes two modulations of such a norm.
    let fused_rms = params.norm == Norm::Rms && params.rounding == Rounding::Once;
    let form = match modulated_form(&parameters, &modulations) {
        OperandForm::SAME if !fused_rms => OperandForm::SAME,
        _ => OperandForm::ANY,
    };
    let norm = NormLaunch { eps: params.eps, form, round_each, staged_vec4: 1 };
    let kernels: NormKernels<PairKernel> = match params.norm {
        Norm::Layer => NormKernels::of(launch::ada_norm_pair_layer_any, launch::ada_norm_pair_layer_smem1),
        Norm::Rms if fused_rms => NormKernels::one(launch::ada_norm_pair_fused_rms_any),
        Norm::Rms => NormKernels::of(launch::ada_norm_pair_rms_any, launch::ada_norm_pair_rms_smem1),
    };
    // Do not set a shared memory carveout, so that the driver chooses the carveout. Measured with 2432
    // columns, the kernel is faster with the driver's choice than with an explicit carveout. With 1536
    // columns, both are equally fast.
    let kernels = NormKernels { carveout: None, ..kernels };
    let launch = Vec4Launch::of(PAIR, device, &layout, norm, kernels)?;
    let (p, outs) =
        (launch.params, [Modulated { by: by_arg, y: y_rows }, Modulated { by: by2_arg, y: y2_rows }]);
    let [out, out2] = outs;
    launch.launch(PAIR, device, &layout, stream, |kernel, site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, x_rows, parameters, out, out2, p) }
    })
}
