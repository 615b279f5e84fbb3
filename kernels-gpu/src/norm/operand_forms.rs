//! The forms that an operand beside the rows has in a kernel: those that matter for speed are known when it
//! is compiled, and any other is looked up for each quad.
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::operand::{Modulation, ModulationRow, Operand, OperandRow};
use crate::layout::operand_kind::OperandKind;

/// Where an operand's values come from, so that a kernel asks for each quad only what it has to.
pub(crate) trait OperandSource<T: Elem>: Copy {
    /// Is it read without a question asked, so that many can be on their way?
    const GROUPED: bool;
    /// Is it read in one access of 8 bytes?
    const EARLY: bool = false;
    /// What is read of a quad.
    type Fetched: Copy;
    /// Nothing yet.
    const EMPTY: Self::Fetched;
    /// Reads the thread's part of `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// Is the operand there at all?
    fn exists(&self) -> bool;
    /// Its values.
    fn lanes(fetched: Self::Fetched) -> [f32; 4];
    /// Its values in the rows' type, which they have.
    fn vec4(fetched: Self::Fetched) -> Vec4<T>;
}

/// An operand of one type, `E`, without a table.
#[derive(Clone, Copy)]
pub(crate) struct Dense<E, A> {
    row: Vec4Row<E, A>,
    pub exists: bool,
}

impl<E: Elem, A: Access> Dense<E, A> {
    /// # Safety
    /// As [`Vec4Row::of`], if the operand is there.
    #[inline(always)]
    pub unsafe fn of_operand(operand: &Operand, at: RowIndex, columns: Vec4Columns) -> Self {
        // SAFETY: as the caller promises; an absent operand is never read.
        let row = unsafe { Vec4Row::of(&operand.rows, at, columns) };
        Self { row, exists: operand.kind.is_not(OperandKind::ABSENT) }
    }

    /// The same, of which the compiler knows that it is there, if it `is`.
    #[inline(always)]
    pub fn assume_present_if(self, is: bool) -> Self {
        Self { exists: is || self.exists, ..self }
    }

    /// Its quad of `tile`; zeros if it is absent.
    #[inline(always)]
    pub fn get(&self, tile: u32) -> Vec4<E> {
        if self.exists { self.row.get(tile) } else { Vec4::ZERO }
    }
}

impl<T: Elem, E: Elem, A: Access> OperandSource<T> for Dense<E, A> {
    const GROUPED: bool = true;
    const EARLY: bool = size_of::<E>() == 2;
    type Fetched = Vec4<E>;
    const EMPTY: Vec4<E> = Vec4::ZERO;
    #[inline(always)]
    fn fetch(&self, tile: u32) -> Vec4<E> {
        self.get(tile)
    }
    #[inline(always)]
    fn exists(&self) -> bool {
        self.exists
    }
    #[inline(always)]
    fn lanes(fetched: Vec4<E>) -> [f32; 4] {
        fetched.lanes()
    }
    #[inline(always)]
    fn vec4(fetched: Vec4<E>) -> Vec4<T> {
        fetched.cast()
    }
}

/// A value and its table, both of the rows' type: their sum, rounded.
#[derive(Clone, Copy)]
pub(crate) struct WithTable<T, A> {
    value: Dense<T, A>,
    table: Vec4Row<T, A>,
}

impl<T: Elem, A: Access> OperandSource<T> for WithTable<T, A> {
    const GROUPED: bool = true;
    type Fetched = [Vec4<T>; 2];
    const EMPTY: [Vec4<T>; 2] = [Vec4::ZERO; 2];
    #[inline(always)]
    fn fetch(&self, tile: u32) -> [Vec4<T>; 2] {
        let table = if self.value.exists { self.table.get(tile) } else { Vec4::ZERO };
        [table, self.value.get(tile)]
    }
    #[inline(always)]
    fn exists(&self) -> bool {
        self.value.exists
    }
    #[inline(always)]
    fn lanes(fetched: [Vec4<T>; 2]) -> [f32; 4] {
        <Self as OperandSource<T>>::vec4(fetched).lanes()
    }
    #[inline(always)]
    fn vec4([table, value]: [Vec4<T>; 2]) -> Vec4<T> {
        table.plus(value)
    }
}

impl<T: Elem, A: Access> ModulationSource<T> for WithTable<T, A> {
    #[inline(always)]
    unsafe fn of(modulation: &Modulation, at: RowIndex, columns: Vec4Columns) -> Self {
        // SAFETY: as the caller promises; the table is one row.
        unsafe {
            Self {
                value: ModulationSource::<T>::of(modulation, at, columns),
                table: Vec4Row::of(&modulation.table.rows, RowIndex::FIRST, columns),
            }
        }
    }
    #[inline(always)]
    fn assume_present(self) -> Self {
        Self { value: self.value.assume_present_if(true), ..self }
    }
}

impl<T: Elem, A: Access> OperandSource<T> for ModulationRow<T, A> {
    const GROUPED: bool = false;
    type Fetched = [f32; 4];
    const EMPTY: [f32; 4] = [0.0; 4];
    #[inline(always)]
    fn fetch(&self, tile: u32) -> [f32; 4] {
        self.lanes(tile).unwrap_or([0.0; 4])
    }
    #[inline(always)]
    fn exists(&self) -> bool {
        self.value.kind.is_not(OperandKind::ABSENT)
    }
    #[inline(always)]
    fn lanes(fetched: [f32; 4]) -> [f32; 4] {
        fetched
    }
    #[inline(always)]
    fn vec4(fetched: [f32; 4]) -> Vec4<T> {
        Vec4::from_lanes(fetched)
    }
}

/// A kind of [`OperandSource`] that is made of a [`Modulation`].
pub(crate) trait ModulationSource<T: Elem>: OperandSource<T> + Sized {
    /// The thread's columns of it.
    ///
    /// # Safety
    /// As [`ModulationRow::of`]; the modulation is of this form.
    unsafe fn of(modulation: &Modulation, at: RowIndex, columns: Vec4Columns) -> Self;
    /// The same, of which the compiler knows that it is there, where that helps.
    fn assume_present(self) -> Self {
        self
    }
}

impl<T: Elem, E: Elem, A: Access> ModulationSource<T> for Dense<E, A> {
    #[inline(always)]
    unsafe fn of(modulation: &Modulation, at: RowIndex, columns: Vec4Columns) -> Self {
        // SAFETY: as the caller promises.
        unsafe { Self::of_operand(&modulation.value, at, columns) }
    }
    #[inline(always)]
    fn assume_present(self) -> Self {
        self.assume_present_if(true)
    }
}

impl<T: Elem, A: Access> ModulationSource<T> for ModulationRow<T, A> {
    #[inline(always)]
    unsafe fn of(modulation: &Modulation, at: RowIndex, columns: Vec4Columns) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                value: OperandRow::of(&modulation.value, at, columns),
                table: OperandRow::of(&modulation.table, at, columns),
            }
        }
    }
}
