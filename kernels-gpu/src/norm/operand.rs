//! Operands that broadcast against the rows of a norm: weight, bias, scale, shift and gate.
//!
//! An operand is absent, has the element type of the rows, or is f32. An operand that is present has one row
//! in total, one row per batch, or one row for each row of the norm. The types of this module test the
//! element type at run time. The tests cost little: all threads of a launch take the same branch, and memory
//! bandwidth limits the kernels.
use crate::layout::operand_kind::OperandKind;
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, round};

/// An operand that broadcasts against the rows: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Address and strides of the operand. If the operand broadcasts over a dimension, the stride of this
    /// dimension is 0.
    pub rows: Rows,
    /// Absent, or the element type.
    pub kind: OperandKind,
}

impl Operand {
    /// An absent operand.
    pub const ABSENT: Self = Self {
        rows: Rows { base: core::ptr::null_mut(), inner_stride: 0, outer_stride: 0 },
        kind: OperandKind::ABSENT,
    };
}

/// Kernel argument: a scale, shift or gate. The operand is `value`, or `table + value` if `table` is present.
///
/// PixArt, LTX-Video and Wan compute such a sum: `scale_shift_table + temb`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Modulation {
    /// The scale, shift or gate for each batch or each token, such as `temb` in diffusers models.
    pub value: Operand,
    /// The learned `scale_shift_table` of a model, or absent. `table + value` is computed in f32. If table
    /// and value both have the element type of the rows, the sum is rounded to this type.
    pub table: Operand,
}

impl Modulation {
    /// An absent modulation.
    pub const ABSENT: Self = Self { value: Operand::ABSENT, table: Operand::ABSENT };
}

/// The calling thread's columns of an [`Operand`].
#[derive(Clone, Copy)]
pub(crate) struct OperandRow<T, A> {
    row: MixedRow<T, A>,
    pub kind: OperandKind,
}

impl<T: Elem, A: Access> OperandRow<T, A> {
    /// Returns the thread's `columns` of row `at` of the operand.
    ///
    /// # Safety
    /// The requirements of [`MixedRow::of`] apply. `operand.kind` states the element type of the operand.
    #[inline(always)]
    pub unsafe fn of(operand: &Operand, at: RowIndex, columns: Vec4Columns) -> Self {
        // SAFETY: the loader reads rows of the operand with the element type that `operand.kind` states. The
        // caller guarantees that these rows are readable. The loader never reads an absent operand.
        let row = unsafe { MixedRow::of(&operand.rows, at, columns, operand.kind.is(OperandKind::F32)) };
        Self { row, kind: operand.kind }
    }

    /// Returns the operand for the thread's columns of `tile` in f32, or `None` if the operand is absent.
    #[inline(always)]
    pub fn lanes(&self, tile: u32) -> Option<[f32; 4]> {
        match self.kind {
            OperandKind::ABSENT => None,
            _ => Some(self.row.lanes(tile)),
        }
    }
}

/// The calling thread's columns of a [`Modulation`].
#[derive(Clone, Copy)]
pub(crate) struct ModulationRow<T, A> {
    pub value: OperandRow<T, A>,
    pub table: OperandRow<T, A>,
}

impl<T: Elem, A: Access> ModulationRow<T, A> {
    /// Returns, in f32, the operand's elements for the thread's four columns of `tile`: `table + value`, or
    /// only `value` if there is no table. Returns `None` if the launch does not have this operand.
    #[inline(always)]
    pub fn lanes(&self, tile: u32) -> Option<[f32; 4]> {
        let value = self.value.lanes(tile)?;
        let Some(table) = self.table.lanes(tile) else { return Some(value) };
        let sum = zip(table, value, |table, value| table + value);
        let both_same = self.value.kind.is(OperandKind::SAME) && self.table.kind.is(OperandKind::SAME);
        Some(if both_same { round::<T>(sum) } else { sum })
    }
}

/// Applies `f` to each pair of elements.
#[inline(always)]
pub(crate) fn zip(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}
