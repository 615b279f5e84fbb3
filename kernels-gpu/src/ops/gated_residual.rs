//! `sum = x + gate * y`: a residual connection with a gate for all rows, for a batch, or for a token.
//!
//! Element by element. `gated_residual_<dtype>` takes any layout; `gated_residual_hold1_<dtype>` wants rows
//! that can be read 16 bytes at a time ([`Rows::is_vector`]).
use cuda_std::prelude::*;

use crate::elementwise::partition::{Extent, Share, blocks};
use crate::elementwise::rounded_chain::Held;
use crate::layout::operand_kind::OperandKind;
use crate::norm::gated_residual::{Gated, clamped};
use crate::norm::operand::{Modulation, Operand};

/// Threads of a block: with three operands half a percent faster than blocks of 128 on an H200.
pub const THREADS: u32 = 256;

/// A thread's elements of the gate.
#[derive(Clone, Copy)]
enum Gate<T: Elem> {
    /// Of the other operands' type.
    Same(Pack<T>),
    /// In f32.
    Single(T::Lanes),
}

impl<T: Elem> Gate<T> {
    /// # Safety
    /// As [`Share::load`], for the type that the operand's kind says.
    #[inline(always)]
    unsafe fn of<const VECTOR: bool>(operand: &Operand, share: &Share<T, VECTOR>) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            match operand.kind {
                OperandKind::F32 => Self::Single(share.lanes::<f32>(&operand.rows)),
                _ => Self::Same(share.load(&operand.rows)),
            }
        }
    }

    #[inline(always)]
    fn lanes(self) -> T::Lanes {
        match self {
            Self::Same(pack) => pack.lanes(),
            Self::Single(lanes) => lanes,
        }
    }

    /// With what the table adds to it: rounded to `T` if both are of it.
    #[inline(always)]
    unsafe fn plus_table<const VECTOR: bool>(self, gate: &Modulation, share: &Share<T, VECTOR>) -> Self {
        if let OperandKind::ABSENT = gate.table.kind {
            return self;
        }
        // SAFETY: as the caller promises.
        match (self, unsafe { Self::of(&gate.table, share) }) {
            (Self::Same(value), Self::Same(table)) => {
                Self::Same(Held::of(table).plus(Held::of(value)).pack())
            }
            (value, table) => Self::Single(table.lanes().zip(value.lanes(), |table, value| table + value)),
        }
    }
}

/// # Safety
/// The host checked that `x`, `y` and `sum` have the extent's rows, the gate as many of the type that its
/// kind says, its table one row, all `Rows::is_vector` if `VECTOR`, and that `sum` overlaps nothing else.
#[inline(always)]
unsafe fn gated_residual<T: Elem, const VECTOR: bool, const MIN_BLOCKS: u32>(gated: Gated, extent: Extent) {
    thread::launch_bounds::<THREADS, MIN_BLOCKS>();
    let Some(share) = Share::<T, VECTOR>::of_thread(extent) else { return };
    // SAFETY: as the caller promises.
    let (x, y, gate) = unsafe {
        let (x, y, gate) = (share.load(&gated.x), share.load(&gated.y), Gate::of(&gated.gate.value, &share));
        (x, y, gate.plus_table(&gated.gate, &share))
    };
    let mut sum = match gate {
        Gate::Same(gate) if gated.round_each != 0 => {
            Held::of(x).plus(Held::of(gate).times(Held::of(y))).pack()
        }
        gate => {
            let product = gate.lanes().zip(y.lanes(), |gate, y| gate * y);
            let product = if gated.round_each != 0 { Held::<T>::new(product).lanes() } else { product };
            Pack::from_lanes(x.lanes().zip(product, |x, product| x + product))
        }
    };
    if gated.clip != 0 {
        sum = Pack::from_lanes(sum.lanes().map(clamped));
    }
    // SAFETY: as the caller promises.
    unsafe { share.store(&gated.sum, sum) };
}

entry! {
    gated_residual<T: [f32, f16, bf16]>(gated: Gated, extent: Extent)
        => gated_residual::<T, false, 3>(gated, extent);
    gated_residual_hold1<T: [f32, f16, bf16]>(gated: Gated, extent: Extent)
        => gated_residual::<T, true, { blocks(THREADS, 6) }>(gated, extent)
}
