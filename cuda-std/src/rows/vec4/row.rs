//! Rows in quads: to read, to write, and of a type that is known when the kernel runs.
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

/// A row to read.
#[derive(Clone, Copy)]
pub struct Vec4Row<T, A> {
    start: *const T,
    columns: Vec4Columns,
    access: PhantomData<A>,
}

impl<T: Elem, A: Access> Vec4Row<T, A> {
    /// The row of `rows` at `at`; nothing if there is none.
    ///
    /// # Safety
    /// While the kernel runs, every row of `rows` has the columns of `columns` to read, and is what
    /// `A` says.
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, at: RowIndex, columns: Vec4Columns) -> Self {
        Self { start: start::<T, A>(rows, at), columns, access: PhantomData }
    }

    /// Where the row starts, for the thread's columns.
    #[inline(always)]
    pub fn first(&self) -> *const T {
        self.start
    }

    /// The thread's quad of `tile`; zeros past the end.
    #[inline(always)]
    pub fn get(&self, tile: u32) -> Vec4<T> {
        self.load(tile, Load::ReadOnly)
    }

    /// Copies the row to shared memory; [`SharedRow::wait`] before it is read. `packs`: is the row
    /// `Rows::is_vector`?
    #[inline(always)]
    pub fn copy_to(&self, staged: &SharedRow<T>, packs: bool) {
        if is_whole::<A>() || is_vector::<A>() && packs {
            // SAFETY: the row is readable (`of`), and aligned as the caller says.
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

    #[inline(always)]
    fn load(&self, tile: u32, hint: Load) -> Vec4<T> {
        if !self.columns.has::<A>(tile) {
            return Vec4::ZERO;
        }
        let at = self.columns.place(self.start, tile);
        // SAFETY: the columns lie inside the row (`of`); if `VECTOR`, whole quads fill it.
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

/// A quad at `at`, in one access.
///
/// # Safety
/// As [`mem::load_u32x4`].
#[inline(always)]
unsafe fn load_words<T>(at: *const T, hint: Load) -> [u32; 4] {
    // SAFETY: as the caller promises.
    unsafe {
        if size_of::<T>() == 2 {
            let [a, b] = mem::load_u32x2(at.cast(), hint);
            [a, b, 0, 0]
        } else {
            mem::load_u32x4(at.cast(), hint)
        }
    }
}

/// The bits of one element.
///
/// # Safety
/// As [`mem::load_u32`].
#[inline(always)]
unsafe fn load_element<T>(at: *const T, hint: Load) -> u32 {
    // SAFETY: as the caller promises.
    unsafe {
        if size_of::<T>() == 2 {
            u32::from(mem::load_u16(at.cast(), hint))
        } else {
            mem::load_u32(at.cast(), hint)
        }
    }
}

/// A row to write.
#[derive(Clone, Copy)]
pub struct Vec4RowMut<T, A> {
    start: *mut T,
    columns: Vec4Columns,
    access: PhantomData<A>,
}

impl<T: Elem, A: Access> Vec4RowMut<T, A> {
    /// The row of `rows` at `at`: see [`Vec4Row::of`].
    ///
    /// # Safety
    /// As [`Vec4Row::of`], writable, and no other team has the same row.
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, at: RowIndex, columns: Vec4Columns) -> Self {
        Self { start: start::<T, A>(rows, at), columns, access: PhantomData }
    }

    /// What the thread wrote as its quad of `tile`; zeros past the end.
    #[inline(always)]
    pub fn written(&self, tile: u32) -> Vec4<T> {
        let Self { start, columns, access } = *self;
        Vec4Row::<T, A> { start: start.cast_const(), columns, access }.load(tile, Load::Default)
    }

    /// Writes the thread's quad of `tile`; nothing past the end.
    #[inline(always)]
    pub fn put(&self, tile: u32, vec4: Vec4<T>) {
        if !self.columns.has::<A>(tile) {
            return;
        }
        let at = self.columns.place(self.start.cast_const(), tile).cast_mut();
        let ([a, b, ..], count) = (vec4.words, self.columns.count(tile) as usize);
        // SAFETY: the columns lie inside the row (`of`) and are this thread's alone; if `VECTOR`, whole quads
        // fill it.
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

/// A row whose elements are of type `T` or f32, decided at run time: a weight, a modulation, a table.
#[derive(Clone, Copy)]
pub struct MixedRow<T, A> {
    start: *const u8,
    single: bool,
    columns: Vec4Columns,
    element: PhantomData<T>,
    access: PhantomData<A>,
}

impl<T: Elem, A: Access> MixedRow<T, A> {
    /// The row of `rows` at `at`, of f32 if `single`.
    ///
    /// # Safety
    /// As [`Vec4Row::of`], for the type that `single` says.
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, at: RowIndex, columns: Vec4Columns, single: bool) -> Self {
        let start = if single { rows.start::<f32>(at).cast() } else { rows.start::<T>(at).cast::<u8>() };
        Self { start, single, columns, element: PhantomData, access: PhantomData }
    }

    /// The thread's quad of `tile` in f32; zeros past the end.
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
