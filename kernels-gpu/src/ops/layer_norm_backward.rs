//! The gradients of [`layer_norm`](super::layer_norm): of its input, its weight and its bias.
//!
//! `layer_norm_backward_block4_<dtype>` wants rows that can be read 16 bytes at a time and stay in four packs
//! of a thread, and `layer_norm_backward_any_<dtype>` takes the others; `layer_norm_backward_sums_<dtype>` adds
//! up what their blocks leave in a workspace.
use cuda_std::prelude::*;

use crate::norm_backward::column_sums::{self, ColumnSums, column_sums};
use crate::norm_backward::gradients::{norm_backward, norm_backward_multi_row};
use crate::norm_backward::params::{NormBackwardParams, Operands, PartialSums};
use crate::rms::weight::Weight;

/// # Safety
/// As [`norm_backward`].
#[inline(always)]
unsafe fn any_layout<T: Elem>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: as the caller promises; the host sets `p.vector` only where every operand is.
    unsafe {
        if p.vector != 0 {
            norm_backward::<T, 0, true, true>(operands, weight, sums, p)
        } else if p.in_registers == 0 {
            norm_backward::<T, 0, false, true>(operands, weight, sums, p)
        } else {
            norm_backward::<T, 1, false, true>(operands, weight, sums, p)
        }
    }
}

/// # Safety
/// As [`norm_backward`].
#[inline(always)]
unsafe fn in_registers<T: Elem>(
    operands: Operands,
    weight: Weight,
    sums: PartialSums,
    p: NormBackwardParams,
) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: as the caller promises.
    unsafe { norm_backward::<T, 4, true, true>(operands, weight, sums, p) }
}

/// # Safety
/// As [`norm_backward_multi_row`].
#[inline(always)]
unsafe fn multi_row<T: Elem, const IN_REGISTERS: usize, const ROWS: usize>(
    operands: Operands,
    weight: Weight,
    sums: PartialSums,
    p: NormBackwardParams,
) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: as the caller promises.
    unsafe { norm_backward_multi_row::<T, IN_REGISTERS, ROWS>(operands, weight, sums, p) }
}

entry! {
    @overlap(Before) layer_norm_backward_any<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => any_layout::<T>(operands, weight, sums, p);
    @overlap(Before) layer_norm_backward_block4<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => in_registers::<T>(operands, weight, sums, p);
    @overlap(Before) layer_norm_backward_rows2_block2<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => multi_row::<T, 2, 2>(operands, weight, sums, p);
    @overlap(Before) layer_norm_backward_block3<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => multi_row::<T, 3, 1>(operands, weight, sums, p);
    @overlap(Before) layer_norm_backward_sums_any<T: [f32, f16, bf16]>(dweight: ColumnSums, dbias: ColumnSums, p: column_sums::ColumnSumsParams)
        => column_sums::<T>([dweight, dbias], p)
}
