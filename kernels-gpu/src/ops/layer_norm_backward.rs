//! Gradients of [`layer_norm`](super::layer_norm) with respect to its input, its weight and its bias. The
//! module [`norm_backward`](crate::norm_backward) documents the formulas.
//!
//! The suffixes of kernel names have these meanings:
//!
//! - `_any` takes any layout.
//! - `_block4` needs rows that allow 16-byte accesses and fit into four packs (16 bytes) per thread.
//! - `_block3` needs rows that allow 16-byte accesses and exactly fill three packs per thread.
//! - `_rows2_block2` needs rows that allow 16-byte accesses and exactly fill two packs per thread. It
//!   processes two rows at a time.
//! - `_sums_any` adds up the partial sums of the gradients of weight and bias. The blocks of the other
//!   kernels write these partial sums to a workspace.
use cuda_std::prelude::*;

use crate::norm_backward::column_sums::{self, ColumnSums, column_sums};
use crate::norm_backward::gradients::{norm_backward, norm_backward_multi_row};
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
            norm_backward::<T, 0, true, true>(operands, weight, sums, p)
        } else if p.in_registers == 0 {
            norm_backward::<T, 0, false, true>(operands, weight, sums, p)
        } else {
            norm_backward::<T, 1, false, true>(operands, weight, sums, p)
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
    unsafe { norm_backward::<T, 4, true, true>(operands, weight, sums, p) }
}

/// # Safety
/// The requirements of [`norm_backward_multi_row`] apply.
#[inline(always)]
unsafe fn multi_row<T: Elem, const IN_REGISTERS: usize, const ROWS: usize>(
    operands: Operands,
    weight: Weight,
    sums: PartialSums,
    p: NormBackwardParams,
) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. A row exactly fills `IN_REGISTERS` packs (16 bytes each) of each thread.
    unsafe { norm_backward_multi_row::<T, IN_REGISTERS, ROWS>(operands, weight, sums, p) }
}

entry! {
    @overlap(Before) @shared(|block| p.shared_bytes::<T>(block, true))
    layer_norm_backward_any<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => any_layout::<T>(operands, weight, sums, p);
    @overlap(Before) @shared(|block| p.shared_bytes::<T>(block, true))
    layer_norm_backward_block4<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => in_registers::<T>(operands, weight, sums, p);
    @overlap(Before) @shared(|block| NormBackwardParams::multi_row_shared_bytes(block))
    layer_norm_backward_rows2_block2<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => multi_row::<T, 2, 2>(operands, weight, sums, p);
    @overlap(Before) @shared(|block| NormBackwardParams::multi_row_shared_bytes(block))
    layer_norm_backward_block3<T: [f32, f16, bf16]>(operands: Operands, weight: Weight, sums: PartialSums, p: NormBackwardParams)
        => multi_row::<T, 3, 1>(operands, weight, sums, p);
    @overlap(Before) @shared(|_block| column_sums::SHARED_BYTES)
    layer_norm_backward_sums_any<T: [f32, f16, bf16]>(dweight: ColumnSums, dbias: ColumnSums, p: column_sums::ColumnSumsParams)
        => column_sums::<T>([dweight, dbias], p)
}
