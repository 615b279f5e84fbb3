//! Gradients of [`rms_norm`](super::rms_norm) with respect to its input and its weight. The module
//! [`norm_backward`](crate::norm_backward) documents the formulas.
//!
//! The suffixes of kernel names have these meanings:
//!
//! - `_any` takes any layout.
//! - `_block4` needs rows that allow 16-byte accesses and fit into four packs (16 bytes) per thread.
//! - `_sums_any` adds up the partial sums of the gradient of the weight. The blocks of the other kernels
//!   write these partial sums to a workspace.
use cuda_std::prelude::*;

use crate::norm_backward::column_sums::{self, ColumnSums, column_sums};
use crate::norm_backward::gradients::norm_backward;
use crate::norm_backward::params::{NormBackwardParams, Operands, PartialSums};
use crate::rms::weight::Weight;

/// # Safety
/// The requirements of [`norm_backward`] apply. If `p.vector` is 1, all operands allow 16-byte accesses
/// (`Rows::is_vector`).
#[inline(always)]
unsafe fn any_layout<T: Elem>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` to 1 only if all operands allow 16-byte accesses.
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
/// The requirements of [`norm_backward`] apply. All operands allow 16-byte accesses (`Rows::is_vector`).
#[inline(always)]
unsafe fn in_registers<T: Elem>(
    operands: Operands,
    weight: Weight,
    sums: PartialSums,
    p: NormBackwardParams,
) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. All operands allow 16-byte accesses.
    unsafe { norm_backward::<T, 4, true, false>(operands, weight, sums, p) }
}

entry! {
    @overlap(Before) @shared(|block| p.shared_bytes::<T>(block, false))
    rms_norm_backward_any<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => any_layout::<T>(operands, weight, sums, p);
    @overlap(Before) @shared(|block| p.shared_bytes::<T>(block, false))
    rms_norm_backward_block4<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => in_registers::<T>(operands, weight, sums, p);
    @overlap(Before) @shared(|_block| column_sums::SHARED_BYTES)
    rms_norm_backward_sums_any<T: [f32, f16, bf16]>(dweight: ColumnSums, dbias: ColumnSums, p: column_sums::ColumnSumsParams)
        => column_sums::<T>([dweight, dbias], p)
}
