//! `sum = x + gate * y`, element by element: a gated residual connection, as in diffusion transformers. The
//! gate has one row for the whole tensor, one row per batch, or one row per token.
//!
//! Kernels with `per_row` in their names take a gate with one column. Such a gate has one number per row of
//! `x`, or a single number.
//!
//! Kernels with `mixed` in their names take operands of any dtypes, with one column, or chosen by an index:
//! see [`norm::mixed`](crate::norm::mixed).
//!
//! `gated_residual_any_<dtype>` takes any layout. `gated_residual_block1_<dtype>` needs rows that allow
//! 16-byte accesses ([`Rows::is_vector`]).
use cuda_std::prelude::*;
use cuda_std::vec4::{Scalar, Vectorized};

use crate::elementwise::partition::{Extent, ThreadElements, blocks};
use crate::norm::broadcast_elements::BroadcastElements;
use crate::norm::gated_residual::{GatedResidualArg, clamped, gated_sum};
use crate::norm::mixed::{Mixed, MixedGatedRow};
use crate::norm::params::{NormParams, RowAccess};
use crate::norm::row_context::RowContext;

/// Threads per block. On an H200, a kernel that reads `x`, `y` and a gate takes 0.3 to 0.8 % less time with
/// 256 threads than with 128. The measurements are in `benches/results/decisions/elementwise.txt`.
pub const THREADS: u32 = 256;

/// # Safety
/// The host checked that `x`, `y` and `sum` have the rows that the kernel argument `extent` describes. The
/// gate broadcasts to these rows, and its field `kind` states its element type. Its table (a vector that is
/// added to the gate) has one row. `sum` overlaps no other operand. If `PER_ROW` is true, the gate has one
/// column and no table. If `VECTOR` is true, all these operands except a gate with one column allow 16-byte
/// accesses (`Rows::is_vector`).
#[inline(always)]
unsafe fn gated_residual<T: Elem, const VECTOR: bool, const PER_ROW: bool, const MIN_BLOCKS: u32>(
    gated: GatedResidualArg,
    extent: Extent,
) {
    thread::launch_bounds::<THREADS, MIN_BLOCKS>();
    let Some(elements) = ThreadElements::<T, VECTOR>::of_thread(extent) else { return };
    // SAFETY: the kernel reads `x`, `y`, the gate, and the table that is added to the gate. The host checked
    // all of them, and the kernel argument `extent` describes their rows.
    let (x, y, gate) = unsafe {
        let (x, y) = (elements.load(&gated.x), elements.load(&gated.y));
        if PER_ROW {
            (x, y, BroadcastElements::of_rows(&gated.gate.value, &elements))
        } else {
            let gate = BroadcastElements::of(&gated.gate.value, &elements);
            (x, y, gate.plus_table(&gated.gate, &elements))
        }
    };
    let mut sum = gated_sum(x, y, gate, gated.round_each != 0);
    if gated.clip != 0 {
        sum = Pack::from_lanes(sum.lanes().map(clamped));
    }
    // SAFETY: the store writes elements of `sum`. The host checked the rows of `sum`, and `sum` overlaps no
    // other operand.
    unsafe { elements.store(&gated.sum, sum) };
}

/// Computes the row of the calling warp.
///
/// # Safety
/// The host checked that `x`, `y` and `sum` have the rows that `p` describes. The gate broadcasts to these
/// rows. If `operands.index` is not null, it has an integer for each row, and the gate has
/// `operands.index_rows` rows. The kinds state the element types. All operands allow the access type that
/// `p.access` specifies. `sum` overlaps no other operand.
#[inline(always)]
unsafe fn mixed<T: Elem>(gated: GatedResidualArg, operands: Mixed, p: NormParams) {
    thread::launch_bounds::<128, 4>();
    let p = NormParams { staged: 0, ..p };
    // SAFETY: the host checked the operands.
    unsafe {
        match p.access {
            RowAccess::VECTORIZED => {
                let Some(row) = RowContext::<T, Vectorized>::of_warp(p) else { return };
                MixedGatedRow::of(&gated, &row, &operands).write(&row);
            }
            _ => {
                let Some(row) = RowContext::<T, Scalar>::of_warp(p) else { return };
                MixedGatedRow::of(&gated, &row, &operands).write(&row);
            }
        }
    }
}

entry! {
    gated_residual_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, extent: Extent)
        => gated_residual::<T, false, false, 3>(gated, extent);
    gated_residual_block1<T: [f32, f16, bf16]>(gated: GatedResidualArg, extent: Extent)
        => gated_residual::<T, true, false, { blocks(THREADS, 6) }>(gated, extent);
    gated_residual_mixed_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, operands: Mixed, p: NormParams)
        => mixed::<T>(gated, operands, p);
    gated_residual_per_row_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, extent: Extent)
        => gated_residual::<T, false, true, 3>(gated, extent);
    gated_residual_per_row_block1<T: [f32, f16, bf16]>(gated: GatedResidualArg, extent: Extent)
        => gated_residual::<T, true, true, { blocks(THREADS, 6) }>(gated, extent)
}
