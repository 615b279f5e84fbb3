//! `sum = x + gate * y`, element by element: a gated residual connection, as in diffusion transformers. The
//! gate has one row for the whole tensor, one row per batch, or one row per token.
//!
//! `gated_residual_any_<dtype>` takes any layout. `gated_residual_block1_<dtype>` needs rows that allow
//! 16-byte accesses ([`Rows::is_vector`]).
use cuda_std::prelude::*;

use crate::elementwise::partition::{Extent, ThreadElements, blocks};
use crate::elementwise::rounded_chain::RoundedVec;
use crate::layout::operand_kind::OperandKind;
use crate::norm::gated_residual::{GatedResidualArg, clamped};
use crate::norm::operand::{Modulation, Operand};

/// Threads per block. For the three inputs `x`, `y` and gate, 256 threads take 0.3 to 0.8 % less time than
/// 128 on an H200 (`benches/results/decisions/elementwise.txt`).
pub const THREADS: u32 = 256;

/// A thread's elements of the gate.
#[derive(Clone, Copy)]
enum GateElements<T: Elem> {
    /// The gate has the element type of the other operands.
    Same(Pack<T>),
    /// The gate as f32 values. The gate tensor is f32, or the kernel added `gate.table` to the gate in f32.
    F32(T::F32Vec),
}

impl<T: Elem> GateElements<T> {
    /// # Safety
    /// The requirements of [`ThreadElements::load`] apply, for the element type in `operand.kind`.
    #[inline(always)]
    unsafe fn of<const VECTOR: bool>(operand: &Operand, elements: &ThreadElements<T, VECTOR>) -> Self {
        // SAFETY: the caller passes an operand with all rows of the launch, of the type in `operand.kind`.
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

    /// Adds the gate's table, such as `scale_shift_table`, if there is one. If table and gate have type `T`,
    /// the sum is rounded to `T`.
    ///
    /// # Safety
    /// The requirements of [`ThreadElements::load`] apply to the table, for the element type in
    /// `gate.table.kind`.
    #[inline(always)]
    unsafe fn plus_table<const VECTOR: bool>(
        self,
        gate: &Modulation,
        elements: &ThreadElements<T, VECTOR>,
    ) -> Self {
        if let OperandKind::ABSENT = gate.table.kind {
            return self;
        }
        // SAFETY: the caller passes a table of the type in `gate.table.kind`.
        match (self, unsafe { Self::of(&gate.table, elements) }) {
            (Self::Same(value), Self::Same(table)) => {
                Self::Same(RoundedVec::of(table).plus(RoundedVec::of(value)).pack())
            }
            (value, table) => Self::F32(table.lanes().zip(value.lanes(), |table, value| table + value)),
        }
    }
}

/// # Safety
/// The host checked that `x`, `y` and `sum` have the rows that `extent` describes. The gate also has these
/// rows, with the element type in its field `kind`, and its table is one row. If `VECTOR` is true, all these
/// operands allow 16-byte accesses (`Rows::is_vector`). `sum` overlaps no other operand.
#[inline(always)]
unsafe fn gated_residual<T: Elem, const VECTOR: bool, const MIN_BLOCKS: u32>(
    gated: GatedResidualArg,
    extent: Extent,
) {
    thread::launch_bounds::<THREADS, MIN_BLOCKS>();
    let Some(elements) = ThreadElements::<T, VECTOR>::of_thread(extent) else { return };
    // SAFETY: the host checked `x`, `y`, the gate and its table, and `extent` describes them.
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
    // SAFETY: the host checked the rows of `sum`, which overlaps no other operand.
    unsafe { elements.store(&gated.sum, sum) };
}

entry! {
    gated_residual_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, extent: Extent)
        => gated_residual::<T, false, 3>(gated, extent);
    gated_residual_block1<T: [f32, f16, bf16]>(gated: GatedResidualArg, extent: Extent)
        => gated_residual::<T, true, { blocks(THREADS, 6) }>(gated, extent)
}
