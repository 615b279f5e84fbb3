//! RMSNorm: `y = x / sqrt(mean(x^2) + eps) * (offset + weight)` over the last dimension.
use cuda_std::l2::L2Policy;
use cuda_std::row::Rows;
use kernels_gpu::rms::row::RmsParams;
use kernels_gpu::rms::weight::{Applied, HeadVectors, Weight};

use crate::arguments::{arguments, choices};
use crate::launch::{RowKernels, cluster_block, in_registers};
use crate::library::LaunchSite;
use crate::operands::numbers::finite;
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::ladder::{Ladder, ONE_OPERAND, SHORT_ROWS, TWO_OPERANDS};
use crate::plan::row_launch::launch_rows;
use crate::{Device, Result, Stream, View, ViewMut};
use kernels_gpu::ops::rms_norm::launch;

/// The steps after which an RMSNorm rounds to the element type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// Round once, at the end. `torch.nn.RMSNorm`, Gemma and OLMo 2 round in this way.
    #[default]
    Once,
    /// Round twice: before the multiplication by the weight, and at the end. The RMSNorm modules of Llama,
    /// Mistral, Qwen, T5 and diffusers round in this way.
    BeforeWeight,
}

choices! { Rounding: BeforeWeight, Once; }

arguments! {
    /// The parameters of an RMSNorm.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct RmsNorm {
        /// Epsilon, which is added to the mean of squares. It must be finite and at least 0.
        pub eps: f32,
        /// A number that is added to the weight: 1 for Gemma, and 0 for all other models. It must be finite.
        pub weight_offset: f32 = 0.0,
        /// The steps after which the norm rounds. Without a weight, this field has no effect, because there
        /// is only one rounding.
        pub rounding: Rounding = Rounding::Once,
    }
}

impl Default for RmsNorm {
    fn default() -> Self {
        Self { eps: 1e-6, weight_offset: 0.0, rounding: Rounding::Once }
    }
}

const OP: &str = "rms_norm";

const LADDER: Ladder =
    Ladder { short: SHORT_ROWS, in_registers: ONE_OPERAND, blocks_up_to: 8_192, reread: 256 };
/// A function that launches a kernel of this op.
type RmsNormKernel = unsafe fn(LaunchSite, Rows, Weight, Rows, RmsParams) -> Result<()>;
const KERNELS: RowKernels<RmsNormKernel> = RowKernels {
    any: launch::rms_norm_any,
    in_registers: &[
        in_registers(2, launch::rms_norm_block2),
        in_registers(4, launch::rms_norm_block4),
        in_registers(8, launch::rms_norm_block8),
        cluster_block(8, launch::rms_norm_cluster8),
    ],
};

/// Computes `y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight)` over the last dimension. With
/// `weight_offset` 0, this is the formula of `torch.nn.RMSNorm`. The sums are in f32.
///
/// `x` and `y` are f32, f16 or bf16 and have the same shape and dtype. `x` and `y` must be viewable as `[n,
/// m, columns]` without a copy, with the same `n` and `m`. `weight` has the shape `[columns]`, and the dtype
/// of `x` or f32. If there are no rows, the call does nothing.
///
/// The bits of a result row depend on the row length, and on whether all operands and their strides are
/// aligned to 16 bytes. The bits of a result row do not depend on the other rows.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported, or if `y` overlaps an
/// input. The same applies if `eps` is negative or not finite, or if `weight_offset` is not finite.
/// [`Error`](crate::Error) lists further errors, such as those of the GPU driver.
pub fn rms_norm(
    device: &Device,
    x: View,
    weight: Option<View>,
    y: ViewMut,
    params: RmsNorm,
    stream: Stream,
) -> Result<()> {
    let y = y.as_view();
    let mut layout = RowLayout::of(OP, device, [("x", &x), ("out", y)])?;
    let weight_arg = check(OP, device, &x, weight.as_ref(), params, &mut layout)?;
    expect_disjoint(OP, ("out", y), &[Some(("x", &x)), weight.as_ref().map(|weight| ("weight", weight))])?;
    let rung = LADDER.pick(OP, device, &KERNELS, &layout)?;
    let (p, [x, y]) = (kernel_params(&layout, params, layout.l2_policy(device, rung, &[0])), layout.operands);
    let kernel = rung.kernel(&KERNELS);
    launch_rows(OP, device, rung, None, &layout, stream, |site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, x, weight_arg, y, p) }
    })
}

const AFFINE: &str = "rms_norm_affine";

const AFFINE_LADDER: Ladder =
    Ladder { short: SHORT_ROWS, in_registers: TWO_OPERANDS, blocks_up_to: u32::MAX, reread: 256 };
type AffineKernel = unsafe fn(LaunchSite, Rows, HeadVectors, HeadVectors, Rows, RmsParams) -> Result<()>;
const AFFINE_KERNELS: RowKernels<AffineKernel> = RowKernels {
    any: launch::rms_norm_affine_any,
    in_registers: &[
        in_registers(2, launch::rms_norm_affine_block2),
        in_registers(4, launch::rms_norm_affine_block4),
    ],
};

/// Computes `y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight) + bias` over the last dimension: the
/// norm of [`rms_norm`], with a bias, and with a weight and a bias that may differ between heads.
///
/// `weight` and `bias` have the shape `[columns]`. If `x` has the shape `[..., heads, columns]`, they may
/// also have the shape `[heads, columns]`. They have the dtype of `x` or f32. With
/// [`Rounding::BeforeWeight`], the product with the weight is also rounded before the bias is added, as in
/// the RMSNorm of diffusers.
///
/// # Errors
/// Returns the errors of [`rms_norm`].
pub fn rms_norm_affine(
    device: &Device,
    x: View,
    weight: Option<View>,
    bias: Option<View>,
    y: ViewMut,
    params: RmsNorm,
    stream: Stream,
) -> Result<()> {
    let y = y.as_view();
    let mut layout = RowLayout::of(AFFINE, device, [("x", &x), ("out", y)])?;
    check_params(AFFINE, params)?;
    let [weight, bias] = [("weight", &weight), ("bias", &bias)].map(|(name, view)| (name, view.as_ref()));
    let weights = layout.head_vectors(AFFINE, device, ("x", &x), weight)?;
    let biases = layout.head_vectors(AFFINE, device, ("x", &x), bias)?;
    let vectors = [weight, bias].map(|(name, view)| view.map(|view| (name, view)));
    expect_disjoint(AFFINE, ("out", y), &[Some(("x", &x)), vectors[0], vectors[1]])?;
    let rung = AFFINE_LADDER.pick(AFFINE, device, &AFFINE_KERNELS, &layout)?;
    let (p, [x, y]) = (kernel_params(&layout, params, layout.l2_policy(device, rung, &[0])), layout.operands);
    let kernel = rung.kernel(&AFFINE_KERNELS);
    launch_rows(AFFINE, device, rung, None, &layout, stream, |site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, x, weights, biases, y, p) }
    })
}

fn check_params(op: &'static str, params: RmsNorm) -> Result<()> {
    finite(op, "eps", params.eps, 0.0)?;
    finite(op, "weight_offset", params.weight_offset, f32::MIN)?;
    Ok(())
}

/// Checks `weight` and `params`, and returns the weight as a kernel argument. If the weight is not aligned to
/// 16 bytes, sets `layout.vector` to false, so that the launch uses a kernel without 16-byte vector access.
pub(super) fn check<const N: usize>(
    op: &'static str,
    device: &Device,
    x: &View,
    weight: Option<&View>,
    params: RmsNorm,
    layout: &mut RowLayout<N>,
) -> Result<Weight> {
    check_params(op, params)?;
    layout.column_weight(op, device, ("x", x), weight)
}

pub(super) fn kernel_params<const N: usize>(
    layout: &RowLayout<N>,
    params: RmsNorm,
    l2_policy: L2Policy,
) -> RmsParams {
    RmsParams {
        rows: layout.rows,
        inner: layout.inner,
        cols: layout.cols,
        inv_cols: (1.0 / f64::from(layout.cols)) as f32,
        eps: params.eps,
        weight: Applied {
            offset: params.weight_offset,
            round_before: u32::from(params.rounding == Rounding::BeforeWeight),
        },
        vector: u32::from(layout.vector),
        l2_policy,
    }
}
