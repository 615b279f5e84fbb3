//! Loaders for scale, shift and gate. Each of these operands is a tensor `value`, or a sum `table + value`.
//!
//! [`Dense`] (without table) and [`WithTable`] fix the dtype at compile time. [`ModulationRow`] tests dtype
//! and table at run time, for each vec4 (four columns).
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::operand::{Modulation, ModulationRow, Operand, OperandRow};
use crate::layout::operand_kind::OperandKind;

/// A loader for an operand such as a scale. The Rust type of the loader can fix the dtype of the operand at
/// compile time. It can also fix whether the operand and its table are present. The loader tests only the
/// remaining properties at run time.
pub(crate) trait OperandSource<T: Elem>: Copy {
    /// `true` if the dtype, and the presence of a table (a tensor that is added to the operand), are
    /// compile-time constants. No branch then separates the loads of several vec4s (four columns each), so
    /// these loads are in flight together.
    const GROUPED: bool;
    /// `true` if a vec4 (four columns) of the operand has only 8 bytes. In this case, a thread has enough
    /// registers to load the operand early.
    const EARLY: bool = false;
    /// The loaded data of one vec4.
    type Fetched: Copy;
    /// Initial value of a `Fetched` variable that is not loaded yet.
    const EMPTY: Self::Fetched;
    /// Loads the thread's columns of `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// Returns whether the operand is present.
    fn exists(&self) -> bool;
    /// Converts loaded data to f32.
    fn lanes(fetched: Self::Fetched) -> [f32; 4];
    /// Returns loaded data as elements of the rows' type `T`. [`Dense`] does not convert the elements, so the
    /// elements of a `Dense` operand must already have type `T`.
    fn vec4(fetched: Self::Fetched) -> Vec4<T>;
}

/// A loader for an operand with elements of type `E` and without a table (a tensor that is added to the
/// operand).
#[derive(Clone, Copy)]
pub(crate) struct Dense<E, A> {
    row: Vec4Row<E, A>,
    pub exists: bool,
}

impl<E: Elem, A: Access> Dense<E, A> {
    /// Returns a loader for the thread's `columns` of row `at` of the operand.
    ///
    /// # Safety
    /// If the operand is present, the requirements of [`Vec4Row::of`] apply.
    #[inline(always)]
    pub unsafe fn of_operand(operand: &Operand, at: RowIndex, columns: Vec4Columns) -> Self {
        // SAFETY: the loader reads rows of the operand as type `E`. The caller guarantees that the operand
        // has such rows and that they are readable. The loader never reads an absent operand.
        let row = unsafe { Vec4Row::of(&operand.rows, at, columns) };
        Self { row, exists: operand.kind.is_not(OperandKind::ABSENT) }
    }

    /// Marks the operand as present if `is` is true. If `is` is a constant, the compiler then removes later
    /// tests of whether the operand is present.
    #[inline(always)]
    pub fn assume_present_if(self, is: bool) -> Self {
        Self { exists: is || self.exists, ..self }
    }

    /// Loads the thread's vec4 (four columns) of `tile`. If the operand is absent, the vec4 is zero.
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

/// A loader for an operand `table + value`, which is rounded to `T`. Both `table` and `value` have the
/// element type `T` of the rows.
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
        // SAFETY: the loaders read rows of the operand `value`, and of the table that is added to it, as type
        // `T`. The caller guarantees that both have such rows and that they are readable. The table has one
        // row.
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

/// A loader ([`OperandSource`]) for a scale, shift or gate. A kernel creates the loader from its argument of
/// type [`Modulation`].
pub(crate) trait ModulationSource<T: Elem>: OperandSource<T> + Sized {
    /// Returns a loader for the thread's `columns` of row `at` of the operand, which is `value` or the sum
    /// `table + value`.
    ///
    /// # Safety
    /// The requirements of [`OperandRow::of`] apply to value and table. Value and table have the dtypes that
    /// this loader expects.
    unsafe fn of(modulation: &Modulation, at: RowIndex, columns: Vec4Columns) -> Self;
    /// Marks the operand as present, so that the compiler removes the tests of whether it is present. The
    /// default implementation changes nothing.
    fn assume_present(self) -> Self {
        self
    }
}

impl<T: Elem, E: Elem, A: Access> ModulationSource<T> for Dense<E, A> {
    #[inline(always)]
    unsafe fn of(modulation: &Modulation, at: RowIndex, columns: Vec4Columns) -> Self {
        // SAFETY: the loader reads rows of `modulation.value` as type `E`. The caller guarantees that no
        // table is added to the value. If the modulation is present, it has readable rows of this type.
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
        // SAFETY: the loader reads rows of the operand `value`, and of the table that is added to it. The
        // caller guarantees that these rows are readable, if value and table are present.
        unsafe {
            Self {
                value: OperandRow::of(&modulation.value, at, columns),
                table: OperandRow::of(&modulation.table, at, columns),
            }
        }
    }
}
