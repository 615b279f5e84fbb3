//! The matrix product of 8-bit floats with scales: `y = x_scale * weight_scale * (x wᵀ) + bias`.
use kernels_gpu::gemm::epilogue::scaled::ScaleParams;
use kernels_gpu::ops::linear_fp8_hopper::launch as fast;
use kernels_gpu::ops::linear_fp8_promoted_hopper::launch as promoted;

use crate::launch::launch_override;
use crate::operands::product::{Product, ProductViews};
use crate::operands::rows::Operand;
use crate::plan::product_hopper::{
    EpilogueKernel, FewRows, T128X128, T128X128_PROMOTED, T128X192, T128X192_PROMOTED, T128X256, T192X192,
    T256X128, T256X192, TimedTile, launch_with_epilogue,
};
use crate::{Device, Dtype, Error, Result, Stream, View, ViewMut};

const OP: &str = "linear_fp8";

type LinearFp8Kernel = EpilogueKernel<ScaleParams>;

const FAST: [(TimedTile, LinearFp8Kernel); 6] = [
    (T128X192, fast::linear_fp8_hopper_128x192_smem),
    (T128X128, fast::linear_fp8_hopper_128x128_smem),
    (T192X192, fast::linear_fp8_hopper_192x192_smem),
    (T256X128, fast::linear_fp8_hopper_256x128_smem),
    (T128X256, fast::linear_fp8_hopper_128x256_smem),
    (T256X192, fast::linear_fp8_hopper_256x192_smem),
];

const PROMOTED: [(TimedTile, LinearFp8Kernel); 2] = [
    (T128X192_PROMOTED, promoted::linear_fp8_promoted_hopper_128x192_smem),
    (T128X128_PROMOTED, promoted::linear_fp8_promoted_hopper_128x128_smem),
];

const FEW_ROWS: FewRows<LinearFp8Kernel> = FewRows {
    t64x16: promoted::linear_fp8_promoted_hopper_64x16_smem,
    t64x16_half: promoted::linear_fp8_promoted_hopper_64x16_half_smem,
    t64x32: promoted::linear_fp8_promoted_hopper_64x32_smem,
    t64x32_half: promoted::linear_fp8_promoted_hopper_64x32_half_smem,
    t64x64: promoted::linear_fp8_promoted_hopper_64x64_smem,
};

/// How [`linear_fp8`] adds the products of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accumulation {
    /// The tensor core adds the products of 128 elements of K. These sums are added in f32.
    #[default]
    F32,
    /// The tensor core adds all products, and keeps 14 significant bits of the sum. The error grows with K.
    Fast,
}

/// Computes `y = x_scale * (weight_scale * (x wᵀ)) + bias` for matrices of 8-bit floats, on Hopper GPUs.
///
/// `x` has the shape `[..., K]`, and `weight` `[N, K]`. Both have the dtype e4m3. `x_scale` has one f32 scale
/// per row of `x`, so its shape is that of `x` without the last dimension. `weight_scale` is f32 `[N]`. `bias`
/// `[N]` and `y` `[..., N]` are f16 or bf16. `K` is a multiple of 16, and `N` of 8. The last dimension of each
/// tensor is contiguous. The rows of `x`, `weight` and `y` are aligned to 16 bytes, with the same distance
/// between consecutive rows.
///
/// The scales and the bias are applied in f32, in the order of the formula, and the result is rounded once.
/// For results with at most 64 rows, [`Accumulation::Fast`] computes the same as [`Accumulation::F32`],
/// because the time of such a product is the time to read `weight`.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported, if `y` overlaps
/// another argument, or if the GPU is not a Hopper GPU. [`Error`](crate::Error) lists further errors, such as
/// those of the GPU driver.
pub fn linear_fp8(
    device: &Device,
    x: View,
    x_scale: View,
    weight: View,
    weight_scale: View,
    bias: Option<View>,
    y: ViewMut,
    accumulation: Accumulation,
    stream: Stream,
) -> Result<()> {
    let views = ProductViews { x: &x, weight: &weight, bias: bias.as_ref(), y: y.as_view() };
    let product = views.check_fp8(OP, device)?;
    let scales = [("x_scale", &x_scale), ("weight_scale", &weight_scale)];
    expect_scales(device, &scales, [&x, &weight])?;
    views.expect_disjoint(OP, &scales.map(Some))?;
    expect_tma(&product, [&x, &weight, views.y])?;
    if let Some(bias) = &bias
        && !product.bias.addr().is_multiple_of(4)
    {
        return Err(bias.bad_strides(OP, "bias", "its address must be a multiple of 4"));
    }
    if product.is_empty() {
        return Ok(());
    }
    let e = ScaleParams {
        x: x_scale.ptr().cast(),
        w: weight_scale.ptr().cast(),
        x_rows: product.x.rows,
        w_rows: product.weight.rows,
    };
    let kernels: &[_] = if accumulation == Accumulation::Fast { &FAST } else { &PROMOTED };
    let mut skip = launch_override(device).skip;
    // SAFETY: `e` describes the scales, which this function has checked.
    if unsafe { launch_with_epilogue(device, &product, Some(&FEW_ROWS), kernels, e, &mut skip, stream) }? {
        return Ok(());
    }
    let name = device.name();
    let why = format!("{name} cannot run the kernels, which need a Hopper GPU; use torch._scaled_mm");
    Err(Error::Unsupported { op: OP, why })
}

/// Checks the scales. Each of `scales` has one element per row of the matrix at the same place in `matrices`.
fn expect_scales(device: &Device, scales: &[Operand; 2], matrices: [&View; 2]) -> Result<()> {
    for (&(arg, scale), matrix) in scales.iter().zip(matrices) {
        scale.expect_on(OP, arg, device)?;
        scale.expect_dtype(OP, arg, Dtype::F32)?;
        scale.expect_shape(OP, arg, &matrix.shape()[..matrix.shape().len() - 1])?;
        if !scale.is_contiguous() {
            return Err(scale.bad_strides(OP, arg, "it must be contiguous"));
        }
    }
    Ok(())
}

/// Checks that TMA can access the matrices.
fn expect_tma(product: &Product, [x, weight, y]: [&View; 3]) -> Result<()> {
    let matrices = [("x", x, product.x), ("weight", weight, product.weight), ("out", y, product.y)];
    for (arg, view, matrix) in matrices {
        if matrix.rows > 0 && matrix.columns > 0 && !matrix.is_tma() {
            return Err(view.bad_strides(OP, arg, "all rows must be aligned to 16 bytes"));
        }
    }
    Ok(())
}
