//! Operands beside the rows of a norm: absent, of the element type or in f32; one row for all, or one for
//! each.
//!
//! Which it is, is decided at run time: the branches are the same for every thread of a launch, and the
//! kernels that use them wait for memory.
use crate::layout::operand_kind::OperandKind;
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, round};

/// An operand that broadcasts against the rows: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Where its rows lie; a stride is 0 where it broadcasts.
    pub rows: Rows,
    /// Whether it is there, and its element type.
    pub kind: OperandKind,
}

impl Operand {
    /// The operand that is not there.
    pub const ABSENT: Self = Self {
        rows: Rows { base: core::ptr::null_mut(), inner_stride: 0, outer_stride: 0 },
        kind: OperandKind::ABSENT,
    };
}

/// `value`, or `table + value` where there is a table (`scale_shift_table + temb` of PixArt, LTX-Video and
/// Wan): a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Modulation {
    /// For a batch or a token.
    pub value: Operand,
    /// A parameter, added in f32 and rounded to the element type if both are of it.
    pub table: Operand,
}

impl Modulation {
    /// The modulation that is not there.
    pub const ABSENT: Self = Self { value: Operand::ABSENT, table: Operand::ABSENT };
}

/// A thread's columns of an [`Operand`].
#[derive(Clone, Copy)]
pub(crate) struct OperandRow<T, A> {
    row: MixedRow<T, A>,
    pub kind: OperandKind,
}

impl<T: Elem, A: Access> OperandRow<T, A> {
    /// # Safety
    /// As [`MixedRow::of`], for the type that the operand's kind says.
    #[inline(always)]
    pub unsafe fn of(operand: &Operand, at: RowIndex, columns: Vec4Columns) -> Self {
        // SAFETY: as the caller promises; an absent operand is never read.
        let row = unsafe { MixedRow::of(&operand.rows, at, columns, operand.kind.is(OperandKind::F32)) };
        Self { row, kind: operand.kind }
    }

    /// Its values in `tile`, if it is there.
    #[inline(always)]
    pub fn lanes(&self, tile: u32) -> Option<[f32; 4]> {
        match self.kind {
            OperandKind::ABSENT => None,
            _ => Some(self.row.lanes(tile)),
        }
    }
}

/// A thread's columns of a [`Modulation`].
#[derive(Clone, Copy)]
pub(crate) struct ModulationRow<T, A> {
    pub value: OperandRow<T, A>,
    pub table: OperandRow<T, A>,
}

impl<T: Elem, A: Access> ModulationRow<T, A> {
    /// Its values in `tile`, if it is there.
    #[inline(always)]
    pub fn lanes(&self, tile: u32) -> Option<[f32; 4]> {
        let value = self.value.lanes(tile)?;
        let Some(table) = self.table.lanes(tile) else { return Some(value) };
        let sum = zip(table, value, |table, value| table + value);
        let both_same = self.value.kind.is(OperandKind::SAME) && self.table.kind.is(OperandKind::SAME);
        Some(if both_same { round::<T>(sum) } else { sum })
    }
}

/// `f` of every pair.
#[inline(always)]
pub(crate) fn zip(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}
