//! Quantization to 8-bit floats, with one scale per row, or one per row and 128 columns.
use cuda_std::row::Rows;
use kernels_gpu::fp8::scale::BLOCK;
use kernels_gpu::ops::quantize_fp8::{QuantizeParams, launch};

use crate::arguments::choices;
use crate::launch::{RowKernels, Rung, in_registers, rung};
use crate::library::LaunchSite;
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::{RowLayout, columns};
use crate::plan::ladder::{Ladder, ONE_OPERAND, RegisterRungs, SHORT_ROWS};
use crate::plan::row_launch::launch_rows;
use crate::{Device, Dtype, Error, Result, Stream, View, ViewMut};

/// The elements that share a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fp8Scaling {
    /// All elements of a row. The scales have the shape `[..., 1]`.
    #[default]
    PerRow,
    /// 128 consecutive columns of a row. The scales have the shape `[..., ceil(columns / 128)]`.
    PerBlock,
}

choices! { Fp8Scaling: PerBlock, PerRow; }

impl Fp8Scaling {
    /// Returns the shape and the strides of the scales that fp8 products read, for rows of the shape `x`.
    ///
    /// Scales per row are contiguous, as `torch._scaled_mm` requires. Scales per block are M-major: the
    /// scales of one block are contiguous over the rows. Consecutive blocks are as many elements apart as
    /// there are rows, rounded up to a multiple of four. DeepGEMM requires this layout, because TMA needs
    /// strides of whole 16 bytes.
    pub fn layout(self, x: &[i64]) -> (Vec<i64>, Vec<i64>) {
        let Some((&cols, lead)) = x.split_last() else { return (vec![], vec![]) };
        let mut strides = vec![1; x.len()];
        for dim in (1..lead.len()).rev() {
            strides[dim - 1] = strides[dim] * lead[dim].max(1);
        }
        let rows: i64 = lead.iter().product();
        let (count, stride) = match self {
            Self::PerRow => (1, 1),
            Self::PerBlock => (self.count(cols), (rows + 3) / 4 * 4),
        };
        strides[lead.len()] = stride;
        ([lead, &[count]].concat(), strides)
    }

    /// Returns the number of scales of a row.
    fn count(self, cols: i64) -> i64 {
        match self {
            Self::PerRow => 1,
            Self::PerBlock => (cols + i64::from(BLOCK) - 1) / i64::from(BLOCK),
        }
    }
}

const OP: &str = "quantize_fp8";

/// A function that launches a kernel of this op.
type QuantizeKernel = unsafe fn(LaunchSite, Rows, Rows, Rows, QuantizeParams) -> Result<()>;

/// Launch configurations for scales per row. Rows of more than 8192 packs (16-byte vectors) are read twice.
const LADDER: Ladder = Ladder {
    short: SHORT_ROWS,
    in_registers: RegisterRungs { sm90: &[], ..ONE_OPERAND },
    blocks_up_to: u32::MAX,
    reread: 512,
};
const KERNELS: RowKernels<QuantizeKernel> = RowKernels {
    any: launch::quantize_fp8_per_row_any,
    in_registers: &[
        in_registers(2, launch::quantize_fp8_per_row_block2),
        in_registers(4, launch::quantize_fp8_per_row_block4),
        in_registers(8, launch::quantize_fp8_per_row_block8),
    ],
};

/// Packs (16-byte vectors) that a thread loads before it uses them, for scales per block.
const STEP: u32 = 4;

/// Quantizes `x` to 8-bit floats. `values * scales` is approximately `x`.
///
/// For each group of elements that `scaling` names, computes `scale = max(max |x| / MAX, 2^-126)` and the
/// values `x * (1 / scale)`. `MAX` is the largest value of the dtype of `values`: 448 for
/// [`Dtype::E4m3`], 57,344 for [`Dtype::E5m2`]. Each operation is in f32 and rounds to nearest even. Values
/// are rounded to nearest even, and they are at most `MAX` in magnitude.
///
/// `x` is f32, f16 or bf16. `values` has the shape of `x`. `scales` is f32 and has the shape of
/// [`Fp8Scaling::layout`], with any strides. All three must be viewable as `[n, m, columns]` without a copy,
/// with the same `n` and `m`. If there are no rows, the call does nothing.
///
/// A NaN in a group of elements makes its scale and all its values NaN. An infinity makes the scale infinite,
/// its own value NaN, and the values of finite elements 0.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported, or if an output
/// overlaps another tensor. [`Error`](crate::Error) lists further errors, such as those of the GPU driver.
pub fn quantize_fp8(
    device: &Device,
    x: View,
    scaling: Fp8Scaling,
    values: ViewMut,
    scales: ViewMut,
    stream: Stream,
) -> Result<()> {
    let (values, scales) = (values.as_view(), scales.as_view());
    let layout = layout(device, &x, scaling, values, scales)?;
    expect_disjoint(OP, ("values", values), &[Some(("x", &x)), Some(("scales", scales))])?;
    expect_disjoint(OP, ("scales", scales), &[Some(("x", &x))])?;
    let p = QuantizeParams {
        rows: layout.rows,
        block_stride: scales.strides()[scales.strides().len() - 1],
        inner: layout.inner,
        cols: layout.cols,
        e5m2: u32::from(values.dtype() == Dtype::E5m2),
        vector: u32::from(layout.vector),
    };
    let (rung, kernel) = match scaling {
        Fp8Scaling::PerRow => {
            let rung = LADDER.pick(OP, device, &KERNELS, &layout)?;
            (rung, rung.kernel(&KERNELS))
        }
        Fp8Scaling::PerBlock => block_launch(&layout),
    };
    let [x, values, scales] = layout.operands;
    launch_rows(OP, device, rung, None, &layout, stream, |site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, x, values, scales, p) }
    })
}

/// Checks the operands and returns their layout.
fn layout(
    device: &Device,
    x: &View,
    scaling: Fp8Scaling,
    values: &View,
    scales: &View,
) -> Result<RowLayout<3>> {
    let cols = columns(OP, "x", x)?;
    if !Dtype::FP8.contains(&values.dtype()) {
        let [a, b] = Dtype::FP8;
        let (got, expected) = (values.dtype(), format!("{a} or {b}"));
        return Err(Error::Dtype { op: OP, arg: "values", got, expected });
    }
    scales.expect_on(OP, "scales", device)?;
    scales.expect_dtype(OP, "scales", Dtype::F32)?;
    let lead = &x.shape()[..x.shape().len() - 1];
    scales.expect_shape(OP, "scales", &[lead, &[scaling.count(i64::from(cols))]].concat())?;

    // The kernels find the first scale of a row as they find the rows of `x`, so it is described as a tensor
    // of the shape of `x` whose columns all have the same address.
    let strides = [&scales.strides()[..lead.len()], &[0]].concat();
    // SAFETY: the view has only elements of `scales`, the first scale of each row.
    let first = unsafe { View::from_raw(scales.ptr(), Dtype::F32, x.shape(), &strides) }?;
    let operands = [("x", x), ("values", values), ("scales", &first)];
    let mut layout = RowLayout::of_columns(OP, device, operands, [true, true, false])?;
    let (size, [rows, bytes, _]) = (x.dtype().size(), &layout.operands);
    layout.vector = rows.is_vector(cols, size) && bytes.is_fp8_vector(cols, lanes(x.dtype()));
    Ok(layout)
}

/// Returns the number of elements in a pack (16-byte vector).
fn lanes(dtype: Dtype) -> u32 {
    16 / dtype.size() as u32
}

/// Returns the launch configuration and the kernel for scales per block. A row has enough threads that each
/// thread has about [`STEP`] packs (16-byte vectors), but at most 256 threads.
fn block_launch(layout: &RowLayout<3>) -> (Rung, QuantizeKernel) {
    let lanes = lanes(layout.dtype);
    let threads = layout.cols.div_ceil(lanes * STEP);
    let threads = if threads > BLOCK / lanes { threads.next_multiple_of(32).min(256) } else { BLOCK / lanes };
    let kernel = match layout.vector {
        true => launch::quantize_fp8_per_block_block4,
        false => launch::quantize_fp8_per_block_any,
    };
    (rung(u32::MAX, 0, threads, threads.max(128).next_multiple_of(threads)), kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_the_layout_of_products() {
        let layout = |scaling: Fp8Scaling, x: &[i64]| scaling.layout(x);
        assert_eq!(layout(Fp8Scaling::PerRow, &[5, 300]), (vec![5, 1], vec![1, 1]));
        assert_eq!(layout(Fp8Scaling::PerRow, &[2, 3, 300]), (vec![2, 3, 1], vec![3, 1, 1]));
        assert_eq!(layout(Fp8Scaling::PerBlock, &[5, 300]), (vec![5, 3], vec![1, 8]));
        assert_eq!(layout(Fp8Scaling::PerBlock, &[2, 3, 128]), (vec![2, 3, 1], vec![3, 1, 8]));
        assert_eq!(layout(Fp8Scaling::PerBlock, &[300]), (vec![3], vec![4]));
        assert_eq!(layout(Fp8Scaling::PerBlock, &[0, 300]), (vec![0, 3], vec![1, 0]));
    }
}
