//! `sum = x + gate * y`: a residual connection with a gate for all rows, for a batch, or for a token.
//!
//! Element by element. `gated_residual_any_<dtype>` takes any layout; `gated_residual_block1_<dtype>` wants rows
//! that can be read 16 bytes at a time ([`Rows::is_vector`]).
use cuda_std::prelude::*;

use crate::elementwise::partition::{Extent, ThreadElements, blocks};
use crate::elementwise::rounded_chain::RoundedVec;
use crate::layout::operand_kind::OperandKind;
use crate::norm::gated_residual::{GatedResidualArg, clamped};
use crate::norm::operand::{Modulation, Operand};

/// Threads of a block: with three operands half a percent faster than blocks of 128 on an H200.
pub const THREADS: u32 = 256;

/// A thread's elements of the gate.
#[derive(Clone, Copy)]
enum GateElements<T: Elem> {
    /// Of the other operands' type.
    Same(Pack<T>),
    /// In f32.
    F32(T::F32Vec),
}

impl<T: Elem> GateElements<T> {
    /// # Safety
    /// As [`ThreadElements::load`], for the type that the operand's kind says.
    #[inline(always)]
    unsafe fn of<const VECTOR: bool>(operand: &Operand, elements: &ThreadElements<T, VECTOR>) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            match operand.kind {
                OperandKind::F32 => Self::F32(elements.lanes::<f32>(&operand.rows)),
                _ => Self::Same(elements.load(&operand.rows)),
            }
        }
    }

    #[inline(always)]
    fn lanes(self) -> T::F32Vec {
        match self {
            Self::Same(pack) => pack.lanes(),
            Self::F32(lanes) => lanes,
        }
    }

    /// With what the table adds to it: rounded to `T` if both are of it.
    #[inline(always)]
    unsafe fn plus_table<const VECTOR: bool>(
        self,
        gate: &Modulation,
        elements: &ThreadElements<T, VECTOR>,
    ) -> Self {
        if let OperandKind::ABSENT = gate.table.kind {
            return self;
        }
        // SAFETY: as the caller promises.
        match (self, unsafe { Self::of(&gate.table, elements) }) {
            (Self::Same(value), Self::Same(table)) => {
                Self::Same(RoundedVec::of(table).plus(RoundedVec::of(value)).pack())
            }
            (value, table) => Self::F32(table.lanes().zip(value.lanes(), |table, value| table + value)),
        }
    }
}

/// # Safety
/// The host checked that `x`, `y` and `sum` have the extent's rows, the gate as many of the type that its
/// kind says, its table one row, all `Rows::is_vector` if `VECTOR`, and that `sum` overlaps nothing else.
#[inline(always)]
unsafe fn gated_residual<T: Elem, const VECTOR: bool, const MIN_BLOCKS: u32>(
    gated: GatedResidualArg,
    extent: Extent,
) {
    thread::launch_bounds::<THREADS, MIN_BLOCKS>();
    let Some(elements) = ThreadElements::<T, VECTOR>::of_thread(extent) else { return };
    // SAFETY: as the caller promises.
    let (x, y, gate) = unsafe {
        let (x, y, gate) = (
            elements.load(&gated.x),
            elements.load(&gated.y),
            GateElements::of(&gated.gate.value, &elements),
        );
        (x, y, gate.plus_table(&gated.gate, &elements))
    };
    let mut sum = match gate {
        GateElements::Same(gate) if gated.round_each != 0 => {
            RoundedVec::of(x).plus(RoundedVec::of(gate).times(RoundedVec::of(y))).pack()
        }
        gate => {
            let product = gate.lanes().zip(y.lanes(), |gate, y| gate * y);
            let product = if gated.round_each != 0 { RoundedVec::<T>::new(product).lanes() } else { product };
            Pack::from_lanes(x.lanes().zip(product, |x, product| x + product))
        }
    };
    if gated.clip != 0 {
        sum = Pack::from_lanes(sum.lanes().map(clamped));
    }
    // SAFETY: as the caller promises.
    unsafe { elements.store(&gated.sum, sum) };
}

entry! {
    gated_residual_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, extent: Extent)
        => gated_residual::<T, false, 3>(gated, extent);
    gated_residual_block1<T: [f32, f16, bf16]>(gated: GatedResidualArg, extent: Extent)
        => gated_residual::<T, true, { blocks(THREADS, 6) }>(gated, extent)
}
