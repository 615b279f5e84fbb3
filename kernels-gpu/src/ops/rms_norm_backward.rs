//! The gradients of [`rms_norm`](super::rms_norm): of its input and of its weight.
//!
//! `rms_norm_backward_block4_<dtype>` wants rows that can be read 16 bytes at a time and stay in four packs of
//! a thread, and `rms_norm_backward_any_<dtype>` takes the others; `rms_norm_backward_sums_<dtype>` adds up what
//! their blocks leave in a workspace.
use cuda_std::prelude::*;

use crate::norm_backward::column_sums::{self, ColumnSums, column_sums};
use crate::norm_backward::gradients::norm_backward;
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
            norm_backward::<T, 0, true, false>(operands, weight, sums, p)
        } else if p.in_registers == 0 {
            norm_backward::<T, 0, false, false>(operands, weight, sums, p)
        } else {
            norm_backward::<T, 1, false, false>(operands, weight, sums, p)
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
    unsafe { norm_backward::<T, 4, true, false>(operands, weight, sums, p) }
}

entry! {
    @overlap(Before) rms_norm_backward_any<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => any_layout::<T>(operands, weight, sums, p);
    @overlap(Before) rms_norm_backward_block4<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => in_registers::<T>(operands, weight, sums, p);
    @overlap(Before) rms_norm_backward_sums_any<T: [f32, f16, bf16]>(dweight: ColumnSums, dbias: ColumnSums, p: column_sums::ColumnSumsParams)
        => column_sums::<T>([dweight, dbias], p)
}
