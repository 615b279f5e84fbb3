//! The matrix product of 8-bit floats with scales: `y = x_scale * weight_scale * (x wᵀ) + bias`.
use kernels_gpu::gemm::epilogue::scaled::{BLOCK, BlockScales, RowScales};
use kernels_gpu::ops::linear_fp8_block_hopper::launch as block;
use kernels_gpu::ops::linear_fp8_hopper::launch as fast;
use kernels_gpu::ops::linear_fp8_promoted_hopper::launch as promoted;

use crate::arguments::choices;
use crate::launch::launch_override;
use crate::operands::matrix::row_distance;
use crate::operands::product::{Product, ProductViews};
use crate::plan::product_hopper::{
    EpilogueKernel, FewRows, T128X128, T128X128_PROMOTED, T128X192, T128X192_PROMOTED, T128X256, T192X192,
    T256X128, T256X192, TimedTile, launch_with_epilogue,
};
use crate::{Device, Dtype, Error, Result, Stream, View, ViewMut};

const OP: &str = "linear_fp8";

const FAST: [(TimedTile, EpilogueKernel<RowScales>); 6] = [
    (T128X192, fast::linear_fp8_hopper_128x192_smem),
    (T128X128, fast::linear_fp8_hopper_128x128_smem),
    (T192X192, fast::linear_fp8_hopper_192x192_smem),
    (T256X128, fast::linear_fp8_hopper_256x128_smem),
    (T128X256, fast::linear_fp8_hopper_128x256_smem),
    (T256X192, fast::linear_fp8_hopper_256x192_smem),
];

const PROMOTED: [(TimedTile, EpilogueKernel<RowScales>); 2] = [
    (T128X192_PROMOTED, promoted::linear_fp8_promoted_hopper_128x192_smem),
    (T128X128_PROMOTED, promoted::linear_fp8_promoted_hopper_128x128_smem),
];

const FEW_ROWS: FewRows<EpilogueKernel<RowScales>> = FewRows {
    t64x16: promoted::linear_fp8_promoted_hopper_64x16_smem,
    t64x16_half: promoted::linear_fp8_promoted_hopper_64x16_half_smem,
    t64x32: promoted::linear_fp8_promoted_hopper_64x32_smem,
    t64x32_half: promoted::linear_fp8_promoted_hopper_64x32_half_smem,
    t64x64: promoted::linear_fp8_promoted_hopper_64x64_smem,
};

const BLOCKS: [(TimedTile, EpilogueKernel<BlockScales>); 1] =
    [(T128X128_PROMOTED, block::linear_fp8_block_hopper_128x128_smem)];

const FEW_ROWS_BLOCKS: FewRows<EpilogueKernel<BlockScales>> = FewRows {
    t64x16: block::linear_fp8_block_hopper_64x16_smem,
    t64x16_half: block::linear_fp8_block_hopper_64x16_half_smem,
    t64x32: block::linear_fp8_block_hopper_64x32_smem,
    t64x32_half: block::linear_fp8_block_hopper_64x32_half_smem,
    t64x64: block::linear_fp8_block_hopper_64x64_smem,
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

choices! { Accumulation: Fast, F32; }

/// Computes `y = scales * (x wᵀ) + bias` for matrices of 8-bit floats, on Hopper GPUs.
///
/// `x` has the shape `[..., K]`, and `weight` `[N, K]`. Both have the dtype e4m3. `bias` `[N]` and `y`
/// `[..., N]` are f16 or bf16. `K` is a multiple of 16, and `N` of 8. The last dimension of each of these
/// tensors is contiguous. The rows of `x`, `weight` and `y` are aligned to 16 bytes, with the same distance
/// between consecutive rows.
///
/// The scales are f32, in one of two forms:
///
/// - Scales per row: `x_scale` has the shape `[..., 1]`, and `weight_scale` `[N, 1]`. Both are contiguous.
///   The result is `x_scale * (weight_scale * sum) + bias`, where `sum` is the sum of the products.
/// - Scales per block: `x_scale` has the shape `[..., ceil(K / 128)]`, and `weight_scale`
///   `[ceil(N / 128), ceil(K / 128)]`. For each block of 128 elements of K, `x_scale * weight_scale`
///   multiplies the sum of the block's products. The results are added in f32. The accumulation must be
///   [`Accumulation::F32`].
///
/// The scales and the bias are applied in f32, and the result is rounded once. For results with at most 64
/// rows, [`Accumulation::Fast`] computes the same as [`Accumulation::F32`], because the time of such a
/// product is the time to read `weight`.
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
    let scales = ScaleViews { x: &x_scale, weight: &weight_scale };
    let per_block = scales.are_per_block(&product);
    scales.check(device, &x, &product, per_block)?;
    views.expect_disjoint(OP, &[Some(("x_scale", &x_scale)), Some(("weight_scale", &weight_scale))])?;
    expect_tma(&product, &views)?;
    if per_block && accumulation == Accumulation::Fast {
        let why = "fast accumulation needs scales per row, and the scales are per block".into();
        return Err(Error::Unsupported { op: OP, why });
    }
    if product.is_empty() {
        return Ok(());
    }
    let mut skip = launch_override(device).skip;
    // SAFETY: the kernel arguments describe the scales, which `check` has checked.
    let launched = unsafe {
        if per_block {
            let e = scales.blocks(&product)?;
            launch_with_epilogue(device, &product, Some(&FEW_ROWS_BLOCKS), &BLOCKS, e, &mut skip, stream)
        } else {
            let kernels: &[_] = if accumulation == Accumulation::Fast { &FAST } else { &PROMOTED };
            let e = scales.rows(&product);
            launch_with_epilogue(device, &product, Some(&FEW_ROWS), kernels, e, &mut skip, stream)
        }
    }?;
    if launched {
        return Ok(());
    }
    let name = device.name();
    let why = format!("{name} cannot run the kernels, which need a Hopper GPU; use torch._scaled_mm");
    Err(Error::Unsupported { op: OP, why })
}

/// The scales of a call.
struct ScaleViews<'v, 'a> {
    x: &'v View<'a>,
    weight: &'v View<'a>,
}

impl ScaleViews<'_, '_> {
    /// Returns whether `weight_scale` has one row per block of rows of `weight`. Otherwise, it must have one
    /// row per row. For a `weight` without rows, the number of columns decides.
    fn are_per_block(&self, product: &Product) -> bool {
        let (rows, shape) = (product.weight.rows, self.weight.shape());
        shape.first() == Some(&i64::from(rows.div_ceil(BLOCK))) && (rows > 0 || shape.last() != Some(&1))
    }

    /// Checks devices, dtypes, shapes and strides.
    fn check(&self, device: &Device, x: &View, product: &Product, per_block: bool) -> Result<()> {
        // The matrix `x` has pairs of elements.
        let depth = 2 * product.x.columns;
        let blocks = if per_block { i64::from(depth.div_ceil(BLOCK)) } else { 1 };
        let (_, leading) = x.shape().split_last().unwrap_or((&0, &[]));
        let rows = product.weight.rows;
        let weight_rows = i64::from(if per_block { rows.div_ceil(BLOCK) } else { rows });
        let expected = [
            ("x_scale", self.x, [leading, &[blocks]].concat()),
            ("weight_scale", self.weight, vec![weight_rows, blocks]),
        ];
        for (arg, scale, shape) in expected {
            scale.expect_on(OP, arg, device)?;
            scale.expect_dtype(OP, arg, Dtype::F32)?;
            scale.expect_shape(OP, arg, &shape)?;
            if !per_block && !scale.is_contiguous() {
                return Err(scale.bad_strides(OP, arg, "it must be contiguous"));
            }
        }
        Ok(())
    }

    /// Returns the kernel argument for scales per row.
    fn rows(&self, product: &Product) -> RowScales {
        RowScales {
            x: self.x.ptr().cast(),
            w: self.weight.ptr().cast(),
            x_rows: product.x.rows,
            w_rows: product.weight.rows,
        }
    }

    /// Returns the kernel argument for scales per block.
    fn blocks(&self, product: &Product) -> Result<BlockScales> {
        let strides = |arg: &'static str, scale: &View| -> Result<[u32; 2]> {
            let row = row_distance(OP, arg, scale)?.unwrap_or(0);
            let block = scale.strides().last().copied().unwrap_or(0);
            let problem = "its strides must be less than 2^32 and not negative";
            match [row, block].map(u32::try_from) {
                [Ok(row), Ok(block)] => Ok([row, block]),
                _ => Err(scale.bad_strides(OP, arg, problem)),
            }
        };
        Ok(BlockScales {
            x: self.x.ptr().cast(),
            w: self.weight.ptr().cast(),
            x_rows: product.x.rows,
            w_rows: product.weight.rows,
            x_strides: strides("x_scale", self.x)?,
            w_strides: strides("weight_scale", self.weight)?,
        })
    }
}

/// Checks that TMA can access the matrices, and that the kernels can load two elements of the bias at once.
fn expect_tma(product: &Product, views: &ProductViews) -> Result<()> {
    let matrices =
        [("x", views.x, product.x), ("weight", views.weight, product.weight), ("out", views.y, product.y)];
    for (arg, view, matrix) in matrices {
        if matrix.rows > 0 && matrix.columns > 0 && !matrix.is_tma() {
            return Err(view.bad_strides(OP, arg, "all rows must be aligned to 16 bytes"));
        }
    }
    match views.bias {
        Some(bias) if !product.bias.addr().is_multiple_of(4) => {
            Err(bias.bad_strides(OP, "bias", "its address must be a multiple of 4"))
        }
        _ => Ok(()),
    }
}
