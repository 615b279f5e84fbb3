//! Loads a thread's elements of an operand that broadcasts against the rows of an element-wise kernel. An
//! example is a gate with one row per batch.
use cuda_std::prelude::*;

use super::operand::{Modulation, Operand};
use crate::elementwise::partition::ThreadElements;
use crate::elementwise::rounded_chain::RoundedVec;
use crate::layout::operand_kind::OperandKind;

/// A thread's elements of an operand, such as a gate, that broadcasts against the rows of the kernel.
#[derive(Clone, Copy)]
pub(crate) enum BroadcastElements<T: Elem> {
    /// The elements have the element type of the rows.
    Same(Pack<T>),
    /// The elements are f32. Either the operand is f32, or it is a sum of two tensors (`table + value`) that
    /// was computed in f32.
    F32(T::F32Vec),
}

impl<T: Elem> BroadcastElements<T> {
    /// # Safety
    /// The requirements of [`ThreadElements::load`] apply to `operand.rows`. `operand.kind` states the
    /// element type of the operand.
    #[inline(always)]
    pub unsafe fn of<const VECTOR: bool>(operand: &Operand, elements: &ThreadElements<T, VECTOR>) -> Self {
        // SAFETY: `lanes` and `load` read the thread's elements of the operand. The caller guarantees that
        // the operand is readable for all rows of the launch. `operand.kind` states its element type.
        unsafe {
            match operand.kind {
                OperandKind::F32 => Self::F32(elements.lanes::<f32>(&operand.rows)),
                _ => Self::Same(elements.load(&operand.rows)),
            }
        }
    }

    /// Loads an operand with one column. The result contains, for each of the thread's elements, the value of
    /// the element's row.
    ///
    /// # Safety
    /// The requirements of [`ThreadElements::row_values`] apply to `operand.rows`. `operand.kind` states the
    /// element type of the operand.
    #[inline(always)]
    pub unsafe fn of_rows<const VECTOR: bool>(
        operand: &Operand,
        elements: &ThreadElements<T, VECTOR>,
    ) -> Self {
        // SAFETY: `row_values` reads one element per row of the operand. The caller guarantees that the
        // operand has these elements. `operand.kind` states their type.
        unsafe {
            match operand.kind {
                OperandKind::F32 => Self::F32(elements.row_values::<f32>(&operand.rows)),
                _ => Self::Same(Pack::from_lanes(elements.row_values::<T>(&operand.rows))),
            }
        }
    }

    #[inline(always)]
    pub fn lanes(self) -> T::F32Vec {
        match self {
            Self::Same(pack) => pack.lanes(),
            Self::F32(lanes) => lanes,
        }
    }

    /// Returns `self`, the elements of the gate, plus the table of the gate. If the gate has no table,
    /// returns `self`. A table is a tensor such as `scale_shift_table`. If table and gate both have type `T`,
    /// the sum is rounded to `T`.
    ///
    /// # Safety
    /// The requirements of [`ThreadElements::load`] apply to the table. `gate.table.kind` states the element
    /// type of the table.
    #[inline(always)]
    pub unsafe fn plus_table<const VECTOR: bool>(
        self,
        gate: &Modulation,
        elements: &ThreadElements<T, VECTOR>,
    ) -> Self {
        if let OperandKind::ABSENT = gate.table.kind {
            return self;
        }
        // SAFETY: `of` reads the thread's elements of the table. The caller guarantees that the table is
        // readable. `gate.table.kind` states its element type.
        match (self, unsafe { Self::of(&gate.table, elements) }) {
            (Self::Same(value), Self::Same(table)) => {
                Self::Same(RoundedVec::of(table).plus(RoundedVec::of(value)).pack())
            }
            (value, table) => Self::F32(table.lanes().zip(value.lanes(), |table, value| table + value)),
        }
    }
}
