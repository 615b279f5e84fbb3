//! Rows that threads access as vec4s (vectors of four elements). There are three types: a row to read, a row
//! to write, and a row to read whose element type is chosen at run time.
use core::marker::PhantomData;

use super::access::{Access, is_scalar, is_vector, is_whole};
use super::columns::{TILE, Vec4Columns};
use super::shared_row::SharedRow;
use super::vector::Vec4;
use crate::numeric::elem::Elem;
use crate::rows::row::{RowIndex, Rows};
use crate::simt::mem::{self, Load, Store};

#[inline(always)]
fn start<T, A: Access>(rows: &Rows, at: RowIndex) -> *mut T {
    if is_whole::<A>() { rows.start_near(at) } else { rows.start(at) }
}

/// A row that kernels read.
#[derive(Clone, Copy)]
pub struct Vec4Row<T, A> {
    start: *const T,
    columns: Vec4Columns,
    access: PhantomData<A>,
}

impl<T: Elem, A: Access> Vec4Row<T, A> {
    /// Returns row `at` of `rows`, for reading. If the row does not exist, all its columns read as zero.
    ///
    /// # Safety
    /// While the kernel runs, the columns of `columns` are readable in every row of `rows`. The rows satisfy
    /// the conditions of the access type `A` (how a thread reads rows).
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, at: RowIndex, columns: Vec4Columns) -> Self {
        Self { start: start::<T, A>(rows, at), columns, access: PhantomData }
    }

    /// Returns the address of the first element of the row.
    #[inline(always)]
    pub fn first(&self) -> *const T {
        self.start
    }

    /// Loads the vec4 (four elements) that this thread has in tile number `tile`. Columns past the end of the
    /// row read as zero.
    #[inline(always)]
    pub fn get(&self, tile: u32) -> Vec4<T> {
        self.load(tile, Load::ReadOnly)
    }

    /// Copies the row to the shared memory of `staged`. Call [`SharedRow::wait`] before you read `staged`.
    /// `packs` says whether the row satisfies `Rows::is_vector` (16-byte alignment). If so, it can be copied
    /// in units of 16 bytes.
    #[inline(always)]
    pub fn copy_to(&self, staged: &SharedRow<T>, packs: bool) {
        if is_whole::<A>() || is_vector::<A>() && packs {
            // SAFETY: the copy reads the whole row. The caller of the constructor `of` guaranteed that the
            // row is readable. The access type `A` (how a thread reads rows), or the flag `packs`, ensures
            // that the row is aligned to 16 bytes.
            return unsafe { staged.copy(self.start, self.columns.cols) };
        }
        let (tiles, mut first) = (self.columns.cols.div_ceil(TILE), 0);
        while first < tiles {
            let vec4s = [0, 1, 2, 3].map(|i: u32| self.get(first + i));
            for i in 0..4 {
                if first + i < tiles {
                    staged.put(first + i, vec4s[i as usize]);
                }
            }
            first += 4;
        }
    }

    /// Does the same as [`Vec4Row::get`], with the cache hint `hint`. If the kernel may write the row,
    /// `hint` must be [`Load::Default`].
    #[inline(always)]
    pub fn load(&self, tile: u32, hint: Load) -> Vec4<T> {
        if !self.columns.has::<A>(tile) {
            return Vec4::ZERO;
        }
        let at = self.columns.place(self.start, tile);
        // SAFETY: the loads read the thread's columns in this tile. `has` returned true, so the row has at
        // least one of these columns. If a load reads one element, `count` limits the loads to columns of the
        // row. If a load reads four elements, the row consists of whole vec4s.
        let words = unsafe {
            if is_scalar::<A>() {
                let count = self.columns.count(tile);
                let element =
                    |i: u32| if i < count { load_element(at.wrapping_add(i as usize), hint) } else { 0 };
                if size_of::<T>() == 2 {
                    [element(0) | element(1) << 16, element(2) | element(3) << 16, 0, 0]
                } else {
                    [element(0), element(1), element(2), element(3)]
                }
            } else {
                load_words(at, hint)
            }
        };
        Vec4 { words, element: PhantomData }
    }
}

/// Loads the vec4 (four elements) at address `at` in one access.
///
/// # Safety
/// The requirements of [`mem::load_u32x4`] apply.
#[inline(always)]
unsafe fn load_words<T>(at: *const T, hint: Load) -> [u32; 4] {
    // SAFETY: the load reads one vec4 (four elements) at `at`. The caller guarantees that this address is
    // readable and aligned to the size of a vec4.
    unsafe {
        if size_of::<T>() == 2 {
            let [a, b] = mem::load_u32x2(at.cast(), hint);
            [a, b, 0, 0]
        } else {
            mem::load_u32x4(at.cast(), hint)
        }
    }
}

/// Loads the bits of one element.
///
/// # Safety
/// The requirements of [`mem::load_u32`] apply.
#[inline(always)]
unsafe fn load_element<T>(at: *const T, hint: Load) -> u32 {
    // SAFETY: the caller passes a readable address of an element.
    unsafe {
        if size_of::<T>() == 2 {
            u32::from(mem::load_u16(at.cast(), hint))
        } else {
            mem::load_u32(at.cast(), hint)
        }
    }
}

/// A row that kernels write.
#[derive(Clone, Copy)]
pub struct Vec4RowMut<T, A> {
    start: *mut T,
    columns: Vec4Columns,
    access: PhantomData<A>,
}

impl<T: Elem, A: Access> Vec4RowMut<T, A> {
    /// Returns row `at` of `rows`, for writing. If the row does not exist, stores to it have no effect.
    ///
    /// # Safety
    /// While the kernel runs, the columns of `columns` are writable in every row of `rows`. No other thread
    /// writes the same columns of the same row. The rows satisfy the conditions of the access type `A`, which
    /// says how many elements one load or store covers.
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, at: RowIndex, columns: Vec4Columns) -> Self {
        Self { start: start::<T, A>(rows, at), columns, access: PhantomData }
    }

    /// Loads the vec4 (four elements) that this thread has stored earlier in tile number `tile`. Columns past
    /// the end of the row read as zero.
    #[inline(always)]
    pub fn written(&self, tile: u32) -> Vec4<T> {
        let Self { start, columns, access } = *self;
        Vec4Row::<T, A> { start: start.cast_const(), columns, access }.load(tile, Load::Default)
    }

    /// Stores the thread's vec4 (four elements) of `tile`. Columns past the end of the row are not written.
    #[inline(always)]
    pub fn put(&self, tile: u32, vec4: Vec4<T>) {
        if !self.columns.has::<A>(tile) {
            return;
        }
        let at = self.columns.place(self.start.cast_const(), tile).cast_mut();
        let ([a, b, ..], count) = (vec4.words, self.columns.count(tile) as usize);
        // SAFETY: the stores write columns of the row. `has` and `count` limit them to columns inside the
        // row, and no other thread writes these columns. If a store writes four elements, the row consists of
        // whole vec4s.
        unsafe {
            if is_vector::<A>() && size_of::<T>() == 2 {
                return mem::store_u32x2(at.cast(), [a, b], Store::Default);
            }
            if is_vector::<A>() {
                return mem::store_u32x4(at.cast(), vec4.words, Store::Default);
            }
            for i in 0..4 {
                let at = at.wrapping_add(i).cast();
                if i >= count {
                } else if size_of::<T>() == 2 {
                    let word = if i < 2 { a } else { b };
                    mem::store_u16(at, (word >> (16 * (i % 2))) as u16, Store::Default);
                } else {
                    mem::store_u32(at, vec4.words[i], Store::Default);
                }
            }
        }
    }
}

/// A row to read, such as a norm's weight or a row of a RoPE table. Its element type is chosen at run time:
/// f32 or `T`.
#[derive(Clone, Copy)]
pub struct MixedRow<T, A> {
    start: *const u8,
    single: bool,
    columns: Vec4Columns,
    element: PhantomData<T>,
    access: PhantomData<A>,
}

impl<T: Elem, A: Access> MixedRow<T, A> {
    /// Returns row `at` of `rows`. The elements of the row are f32 if `single` is true, otherwise of type
    /// `T`.
    ///
    /// # Safety
    /// While the kernel runs, the columns of `columns` are readable in every row of `rows`, with the element
    /// type that `single` selects. The rows satisfy the conditions of the access type `A` (how a thread reads
    /// rows).
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, at: RowIndex, columns: Vec4Columns, single: bool) -> Self {
        let start = if single { rows.start::<f32>(at).cast() } else { rows.start::<T>(at).cast::<u8>() };
        Self { start, single, columns, element: PhantomData, access: PhantomData }
    }

    /// Loads the thread's vec4 (four elements) of `tile` as f32. Columns past the end of the row read as
    /// zero.
    #[inline(always)]
    pub fn lanes(&self, tile: u32) -> [f32; 4] {
        let Self { start, columns, access, .. } = *self;
        if self.single {
            Vec4Row::<f32, A> { start: start.cast(), columns, access }.get(tile).lanes()
        } else {
            Vec4Row::<T, A> { start: start.cast(), columns, access }.get(tile).lanes()
        }
    }
}
