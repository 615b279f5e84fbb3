//! `y = x * (1 + scale) + shift`, element by element: the modulation of a diffusion transformer without the
//! norm before it. Scale and shift each have one row for the whole tensor, one row per batch, or one row per
//! token. The shift may be absent.
//!
//! Kernels with `mixed` in their names take operands of any dtypes, with one column, or chosen by an index:
//! see [`norm::mixed`](crate::norm::mixed).
//!
//! `modulate_any_<dtype>` takes any layout. `modulate_block1_<dtype>` needs rows that allow 16-byte accesses
//! ([`Rows::is_vector`]).
use cuda_std::prelude::*;
use cuda_std::vec4::{Scalar, Vectorized};

use crate::elementwise::partition::{Extent, ThreadElements, blocks};
use crate::elementwise::rounded_chain::RoundedVec;
use crate::layout::operand_kind::OperandKind;
use crate::norm::broadcast_elements::BroadcastElements;
use crate::norm::mixed::{Mixed, MixedModulatedRow};
use crate::norm::operand::Operand;
use crate::norm::params::{NormParams, RowAccess};
use crate::norm::row_context::RowContext;

/// Threads per block.
pub const THREADS: u32 = 256;

/// The operands and rounding of a modulation: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ModulateArg {
    /// The rows to modulate.
    pub x: Rows,
    /// The scale.
    pub scale: Operand,
    /// The shift, which may be absent.
    pub shift: Operand,
    /// The output.
    pub y: Rows,
    /// 1 to round after each operation, as separate torch operators do. 0 to round only the result. If the
    /// rows have a 16-bit dtype and scale or shift is f32, the value is 0.
    pub round_each: u32,
}

/// # Safety
/// The host checked that `x` and `y` have the rows that the kernel argument `extent` describes. Scale and
/// shift broadcast to these rows, and their fields `kind` state their element types. If `VECTOR` is true, all
/// these operands allow 16-byte accesses (`Rows::is_vector`). `y` overlaps no other operand.
#[inline(always)]
unsafe fn modulate<T: Elem, const VECTOR: bool, const MIN_BLOCKS: u32>(arg: ModulateArg, extent: Extent) {
    thread::launch_bounds::<THREADS, MIN_BLOCKS>();
    let Some(elements) = ThreadElements::<T, VECTOR>::of_thread(extent) else { return };
    let has_shift = !matches!(arg.shift.kind, OperandKind::ABSENT);
    // SAFETY: the loads read `x`, scale and shift. The host checked all three, and the kernel argument
    // `extent` describes their rows.
    let (x, scale, shift) = unsafe {
        (
            elements.load(&arg.x),
            BroadcastElements::of(&arg.scale, &elements),
            has_shift.then(|| BroadcastElements::of(&arg.shift, &elements)),
        )
    };
    let y = if arg.round_each != 0 {
        let factor = RoundedVec::splat(1.0).plus(RoundedVec::new(scale.lanes()));
        let product = RoundedVec::of(x).times(factor);
        shift.map_or(product, |shift| product.plus(RoundedVec::new(shift.lanes()))).pack()
    } else {
        let product = x.lanes().zip(scale.lanes(), |x, scale| x * (1.0 + scale));
        Pack::from_lanes(
            shift.map_or(product, |shift| product.zip(shift.lanes(), |product, shift| product + shift)),
        )
    };
    // SAFETY: the store writes elements of `y`. The host checked the rows of `y`, and `y` overlaps no other
    // operand.
    unsafe { elements.store(&arg.y, y) };
}

/// Computes the row of the calling warp.
///
/// # Safety
/// The host checked that `x` and `y` have the rows that `p` describes. Scale and shift broadcast to these
/// rows. If `operands.index` is not null, it has an integer for each row, and scale and shift have
/// `operands.index_rows` rows. The fields `kind` state the element types. All operands allow the access type
/// that `p.access` specifies. `y` overlaps no other operand.
#[inline(always)]
unsafe fn mixed<T: Elem>(arg: ModulateArg, operands: Mixed, p: NormParams) {
    thread::launch_bounds::<128, 5>();
    let p = NormParams { staged: 0, ..p };
    let (rows, by, each) = ([&arg.x, &arg.y], [&arg.scale, &arg.shift], arg.round_each != 0);
    // SAFETY: the host checked the operands.
    unsafe {
        match p.access {
            RowAccess::VECTORIZED => {
                let Some(row) = RowContext::<T, Vectorized>::of_warp(p) else { return };
                MixedModulatedRow::of(rows, by, &row, &operands, each).write(&row);
            }
            _ => {
                let Some(row) = RowContext::<T, Scalar>::of_warp(p) else { return };
                MixedModulatedRow::of(rows, by, &row, &operands, each).write(&row);
            }
        }
    }
}

entry! {
    modulate_any<T: [f32, f16, bf16]>(arg: ModulateArg, extent: Extent) => modulate::<T, false, 3>(arg, extent);
    modulate_mixed_any<T: [f32, f16, bf16]>(arg: ModulateArg, operands: Mixed, p: NormParams)
        => mixed::<T>(arg, operands, p);
    modulate_block1<T: [f32, f16, bf16]>(arg: ModulateArg, extent: Extent)
        => modulate::<T, true, { blocks(THREADS, 6) }>(arg, extent)
}
