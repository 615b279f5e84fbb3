//! Rows of a tensor, read and written by a [`Team`] in tiles.
//!
//! A tile is one [`Pack`] for each thread of the team, so `size * LEN` columns. Which columns a thread holds depends
//! on `VECTOR`, and on nothing else in a kernel:
//!
//! - `true`: `LEN` neighbouring columns, one 16-byte access. Needs a base and strides aligned to 16 bytes and a
//!   number of columns divisible by `LEN`; the host checks ([`Rows::is_vector`]).
//! - `false`: `LEN` columns a team apart, one access for each element, which a warp still coalesces. Takes any
//!   number of columns and any address.
//!
//! Both orders visit each column once, so a kernel that treats columns alike is written once for both. Columns past
//! the end read as zero and are not written.
use super::pack::Pack;
use super::team::Team;
use crate::numeric::elem::{Elem, F32Vec};
use crate::simt::l2;
use crate::simt::mem::{self, Load, Store};

mod bounds;
mod f32_vec;
mod index;
pub use index::RowIndex;

/// How an operand's rows lie in memory: a kernel argument. Row `r` starts `r / inner * outer_stride + r % inner *
/// inner_stride` elements after the base, where `inner` is the same for all operands of a launch (0: one level, the
/// inner stride alone).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The first element of the first row.
    pub base: *mut u8,
    /// Elements from a row to the next inside a group of `inner`.
    pub inner_stride: i64,
    /// Elements from a group of `inner` rows to the next.
    pub outer_stride: i64,
}

impl Rows {
    /// A single row, the same for every row of the other operands (a weight).
    #[inline(always)]
    pub fn single(base: *const u8) -> Self {
        Self { base: base.cast_mut(), inner_stride: 0, outer_stride: 0 }
    }

    /// May rows of `cols` elements of `element` bytes be accessed 16 bytes at a time?
    pub fn is_vector(&self, cols: u32, element: usize) -> bool {
        self.is_aligned(cols, element, 16)
    }

    /// Do rows of `cols` elements of `element` bytes begin and end with a line of L2?
    pub fn is_lines(&self, cols: u32, element: usize) -> bool {
        self.is_aligned(cols, element, l2::LINE as usize)
    }

    /// Do they begin and end at a multiple of `bytes`?
    pub(crate) fn is_aligned(&self, cols: u32, element: usize, bytes: usize) -> bool {
        let aligned = |elements: i64| (elements * element as i64) % bytes as i64 == 0;
        (self.base as usize).is_multiple_of(bytes)
            && aligned(self.inner_stride)
            && aligned(self.outer_stride)
            && aligned(i64::from(cols))
    }

    /// Are strides numbers of 32 bits, so that one multiplication finds a row of few? See [`RowIndex::narrow`].
    pub fn is_near(&self) -> bool {
        [self.inner_stride, self.outer_stride].iter().all(|stride| u32::try_from(*stride).is_ok())
    }

    /// The row at `at`, which [`RowIndex::narrow`] made, in rows that are [`Rows::is_near`].
    #[inline(always)]
    pub(crate) fn start_near<T>(&self, at: RowIndex) -> *mut T {
        let bytes = |row: i64, stride: i64| {
            u64::from((row as u32).wrapping_mul(size_of::<T>() as u32)) * u64::from(stride as u32)
        };
        let start = self.base.wrapping_add(bytes(at.within, self.inner_stride) as usize);
        start.wrapping_add(bytes(at.group, self.outer_stride) as usize).cast()
    }

    #[inline(always)]
    pub(crate) fn start<T>(&self, at: RowIndex) -> *mut T {
        let offset = at.within * self.inner_stride + at.group * self.outer_stride;
        self.base.cast::<T>().wrapping_offset(offset as isize)
    }
}

/// The columns that a thread holds of its row.
#[derive(Clone, Copy)]
struct Columns<const VECTOR: bool> {
    rank: u32,
    size: u32,
    /// Columns in the row; 0 when the team has no row.
    cols: u32,
}

impl<const VECTOR: bool> Columns<VECTOR> {
    #[inline(always)]
    fn of(team: Team, at: RowIndex, cols: u32) -> Self {
        Self { rank: team.rank, size: team.size, cols: if at.exists { cols } else { 0 } }
    }
    /// The thread's first column of the row, for packs of `len`.
    #[inline(always)]
    fn base(&self, len: u32) -> u32 {
        if VECTOR { self.rank * len } else { self.rank }
    }
    /// From the first column to that of `tile`: the same for all threads, so that it costs no register of theirs.
    #[inline(always)]
    fn offset(&self, tile: u32, len: u32) -> u32 {
        tile * self.size * len
    }
    /// From one of the thread's columns to the next.
    #[inline(always)]
    fn step(&self) -> u32 {
        if VECTOR { 1 } else { self.size }
    }
    /// Does the row have column `base(len) + offset`?
    #[inline(always)]
    fn has(&self, offset: u32, len: u32) -> bool {
        self.base(len) + offset < self.cols
    }
    #[inline(always)]
    fn tiles(&self, len: u32) -> u32 {
        self.cols.div_ceil(self.size * len)
    }
}

/// A row to read.
#[derive(Clone, Copy)]
pub struct Row<T, const VECTOR: bool> {
    start: *const T,
    columns: Columns<VECTOR>,
}

impl<T: Elem, const VECTOR: bool> Row<T, VECTOR> {
    /// The row of `rows` at `at`; nothing if there is none.
    ///
    /// # Safety
    /// While the kernel runs, every row of `rows` has `cols` readable elements, `Rows::is_vector` if `VECTOR`.
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, team: Team, at: RowIndex, cols: u32) -> Self {
        Self { start: rows.start(at), columns: Columns::of(team, at, cols) }
    }

    /// The thread's first column.
    #[inline(always)]
    pub fn first(&self) -> *const T {
        self.start.wrapping_add(self.columns.base(Pack::<T>::LEN) as usize)
    }

    /// The thread's pack of `tile`; zeros past the end.
    #[inline(always)]
    pub fn load(&self, tile: u32, hint: Load) -> Pack<T> {
        let len = Pack::<T>::LEN;
        if !VECTOR {
            return Pack::from_bits(|i| self.element(tile, i, len, hint));
        }
        let offset = self.columns.offset(tile, len);
        if !self.columns.has(offset, len) {
            return Pack::ZERO;
        }
        let at = self.first().wrapping_add(offset as usize);
        // SAFETY: whole packs fill the row (`of`), and this one starts inside it.
        Pack::from_words(unsafe { mem::load_u32x4(at.cast(), hint) })
    }

    /// Gives back the lines that begin with the thread's pack of `tile`, if they are kept: see [`L2Policy`](crate::simt::l2::L2Policy).
    ///
    /// # Safety
    /// Rows begin and end with a line.
    #[inline(always)]
    pub unsafe fn demote(&self, tile: u32) {
        let len = Pack::<T>::LEN;
        let offset = self.columns.offset(tile, len);
        let begins = ((self.columns.base(len) + offset) * size_of::<T>() as u32).is_multiple_of(l2::LINE);
        if VECTOR && begins && self.columns.has(offset, len) {
            // SAFETY: all of the line is in the row.
            unsafe { l2::demote(self.first().wrapping_add(offset as usize).cast()) };
        }
    }

    /// The thread's columns of `tile` as f32, where another operand's packs have `L::LEN` elements: a weight in f32
    /// beside an input in bf16. Zeros past the end.
    #[inline(always)]
    pub fn lanes<L: F32Vec>(&self, tile: u32, hint: Load) -> L {
        if !VECTOR {
            return L::from_fn(|i| T::from_bits(self.element(tile, i as u32, L::LEN, hint)).to_f32());
        }
        let offset = self.columns.offset(tile, L::LEN);
        if !self.columns.has(offset, L::LEN) {
            return L::splat(0.0);
        }
        let at = self.start.wrapping_add(self.columns.base(L::LEN) as usize).wrapping_add(offset as usize);
        let mut in_registers = T::F32Vec::splat(0.0);
        L::from_fn(|i| {
            let within = i % Pack::<T>::LEN as usize;
            if within == 0 {
                // SAFETY: as in `load`; `L::LEN` is a multiple of the pack's length.
                in_registers = T::unpack(unsafe { mem::load_u32x4(at.wrapping_add(i).cast(), hint) });
            }
            in_registers.get(within)
        })
    }

    /// The bits of the thread's column `i` of `tile`, for packs of `len`; zero past the end.
    #[inline(always)]
    fn element(&self, tile: u32, i: u32, len: u32, hint: Load) -> u32 {
        let offset = self.columns.offset(tile, len) + i * self.columns.step();
        if !self.columns.has(offset, len) {
            return 0;
        }
        let at =
            self.start.wrapping_add(self.columns.base(len) as usize).wrapping_add(offset as usize).cast();
        // SAFETY: the column lies inside the row (`of`).
        unsafe {
            if size_of::<T>() == 2 { u32::from(mem::load_u16(at, hint)) } else { mem::load_u32(at, hint) }
        }
    }
}

/// A row to write.
#[derive(Clone, Copy)]
pub struct RowMut<T, const VECTOR: bool> {
    start: *mut T,
    columns: Columns<VECTOR>,
}

impl<T: Elem, const VECTOR: bool> RowMut<T, VECTOR> {
    /// The row of `rows` at `at`: see [`Row::of`].
    ///
    /// # Safety
    /// As [`Row::of`], writable, and no other team has the same row.
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, team: Team, at: RowIndex, cols: u32) -> Self {
        Self { start: rows.start(at), columns: Columns::of(team, at, cols) }
    }

    /// Writes the thread's pack of `tile`; nothing past the end.
    #[inline(always)]
    pub fn store(&self, tile: u32, pack: Pack<T>, hint: Store) {
        let (columns, len) = (&self.columns, Pack::<T>::LEN);
        let base = self.start.wrapping_add(columns.base(len) as usize);
        let offset = columns.offset(tile, len);
        if VECTOR {
            if columns.has(offset, len) {
                // SAFETY: whole packs fill the row (`of`), this one starts inside it and is this thread's alone.
                unsafe { mem::store_u32x4(base.wrapping_add(offset as usize).cast(), pack.words(), hint) };
            }
            return;
        }
        for i in 0..len {
            let offset = offset + i * columns.step();
            if columns.has(offset, len) {
                let at = base.wrapping_add(offset as usize).cast();
                // SAFETY: the column lies inside the row (`of`) and is this thread's alone.
                unsafe {
                    if size_of::<T>() == 2 {
                        mem::store_u16(at, pack.bits(i) as u16, hint)
                    } else {
                        mem::store_u32(at, pack.bits(i), hint)
                    }
                }
            }
        }
    }
}
