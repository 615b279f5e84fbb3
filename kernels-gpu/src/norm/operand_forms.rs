//! The forms that an operand beside the rows has in a kernel: those that matter for speed are known when it
//! is compiled, and any other is looked up for each quad.
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::operand::{Modulation, ModulationRow, Operand, OperandRow};
use crate::layout::operand_kind::OperandKind;

/// Where an operand's values come from, so that a kernel asks for each quad only what it has to.
pub(crate) trait Side<T: Elem>: Copy {
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
    fn quad(fetched: Self::Fetched) -> Quad<T>;
}

/// An operand of one type, `E`, without a table.
#[derive(Clone, Copy)]
pub(crate) struct Plain<E, A> {
    row: QuadRow<E, A>,
    pub exists: bool,
}

impl<E: Elem, A: Access> Plain<E, A> {
    /// # Safety
    /// As [`QuadRow::of`], if the operand is there.
    #[inline(always)]
    pub unsafe fn of_operand(operand: &Operand, at: RowAt, columns: QuadColumns) -> Self {
        // SAFETY: as the caller promises; an absent operand is never read.
        let row = unsafe { QuadRow::of(&operand.rows, at, columns) };
        Self { row, exists: operand.kind.is_not(OperandKind::ABSENT) }
    }

    /// The same, of which the compiler knows that it is there, if it `is`.
    #[inline(always)]
    pub fn or_there(self, is: bool) -> Self {
        Self { exists: is || self.exists, ..self }
    }

    /// Its quad of `tile`; zeros if it is absent.
    #[inline(always)]
    pub fn get(&self, tile: u32) -> Quad<E> {
        if self.exists { self.row.get(tile) } else { Quad::ZERO }
    }
}

impl<T: Elem, E: Elem, A: Access> Side<T> for Plain<E, A> {
    const GROUPED: bool = true;
    const EARLY: bool = size_of::<E>() == 2;
    type Fetched = Quad<E>;
    const EMPTY: Quad<E> = Quad::ZERO;
    #[inline(always)]
    fn fetch(&self, tile: u32) -> Quad<E> {
        self.get(tile)
    }
    #[inline(always)]
    fn exists(&self) -> bool {
        self.exists
    }
    #[inline(always)]
    fn lanes(fetched: Quad<E>) -> [f32; 4] {
        fetched.lanes()
    }
    #[inline(always)]
    fn quad(fetched: Quad<E>) -> Quad<T> {
        fetched.cast()
    }
}

/// A value and its table, both of the rows' type: their sum, rounded.
#[derive(Clone, Copy)]
pub(crate) struct Tabled<T, A> {
    value: Plain<T, A>,
    table: QuadRow<T, A>,
}

impl<T: Elem, A: Access> Side<T> for Tabled<T, A> {
    const GROUPED: bool = true;
    type Fetched = [Quad<T>; 2];
    const EMPTY: [Quad<T>; 2] = [Quad::ZERO; 2];
    #[inline(always)]
    fn fetch(&self, tile: u32) -> [Quad<T>; 2] {
        let table = if self.value.exists { self.table.get(tile) } else { Quad::ZERO };
        [table, self.value.get(tile)]
    }
    #[inline(always)]
    fn exists(&self) -> bool {
        self.value.exists
    }
    #[inline(always)]
    fn lanes(fetched: [Quad<T>; 2]) -> [f32; 4] {
        <Self as Side<T>>::quad(fetched).lanes()
    }
    #[inline(always)]
    fn quad([table, value]: [Quad<T>; 2]) -> Quad<T> {
        table.plus(value)
    }
}

impl<T: Elem, A: Access> Form<T> for Tabled<T, A> {
    #[inline(always)]
    unsafe fn of(modulation: &Modulation, at: RowAt, columns: QuadColumns) -> Self {
        // SAFETY: as the caller promises; the table is one row.
        unsafe {
            Self {
                value: Form::<T>::of(modulation, at, columns),
                table: QuadRow::of(&modulation.table.rows, RowAt::FIRST, columns),
            }
        }
    }
    #[inline(always)]
    fn there(self) -> Self {
        Self { value: self.value.or_there(true), ..self }
    }
}

impl<T: Elem, A: Access> Side<T> for ModulationRow<T, A> {
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
    fn quad(fetched: [f32; 4]) -> Quad<T> {
        Quad::from_lanes(fetched)
    }
}

/// A kind of [`Side`] that is made of a [`Modulation`].
pub(crate) trait Form<T: Elem>: Side<T> + Sized {
    /// The thread's columns of it.
    ///
    /// # Safety
    /// As [`ModulationRow::of`]; the modulation is of this form.
    unsafe fn of(modulation: &Modulation, at: RowAt, columns: QuadColumns) -> Self;
    /// The same, of which the compiler knows that it is there, where that helps.
    fn there(self) -> Self {
        self
    }
}

impl<T: Elem, E: Elem, A: Access> Form<T> for Plain<E, A> {
    #[inline(always)]
    unsafe fn of(modulation: &Modulation, at: RowAt, columns: QuadColumns) -> Self {
        // SAFETY: as the caller promises.
        unsafe { Self::of_operand(&modulation.value, at, columns) }
    }
    #[inline(always)]
    fn there(self) -> Self {
        self.or_there(true)
    }
}

impl<T: Elem, A: Access> Form<T> for ModulationRow<T, A> {
    #[inline(always)]
    unsafe fn of(modulation: &Modulation, at: RowAt, columns: QuadColumns) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                value: OperandRow::of(&modulation.value, at, columns),
                table: OperandRow::of(&modulation.table, at, columns),
            }
        }
    }
}
