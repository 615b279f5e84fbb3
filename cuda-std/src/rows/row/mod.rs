//! Rows of a tensor. A [`Team`] (the threads that share a row) reads and writes its row in tiles.
//!
//! A tile is a range of columns of the row. It has one [`Pack`] (16 bytes, `LEN` elements) for each of the
//! `size` threads of the team, so it has `size * LEN` columns. The constant `VECTOR` determines which columns
//! of a tile each thread accesses:
//!
//! - `true`: `LEN` contiguous columns, which the thread accesses as one 16-byte vector. The base address and
//!   the strides must be multiples of 16 bytes, and the number of columns must be divisible by `LEN`. The
//!   host checks these conditions with [`Rows::is_vector`].
//! - `false`: `LEN` columns, each `size` columns after the previous one. The thread makes one access per
//!   element. A warp's accesses are still coalesced. Any number of columns and any address are allowed.
//!
//! With both values of `VECTOR`, the threads of a team together access each column of a tile once. The same
//! source code works with both values, if the kernel treats all columns alike. Columns past the end of the
//! row read as zero and are not written.
use super::pack::Pack;
use super::team::Team;
use crate::numeric::elem::{Elem, F32Vec};
use crate::simt::l2;
use crate::simt::mem::{self, Load, Store};

mod bounds;
mod f32_vec;
pub mod fp8;
mod index;
pub use index::RowIndex;

/// A kernel argument that describes an operand: the address of its first row and the strides between its
/// rows.
///
/// The rows are divided into groups of `inner` rows. Row `r` starts `r / inner * outer_stride + r % inner *
/// inner_stride` elements after `base`. If `inner` is 0, row `r` starts `r * inner_stride` elements after
/// `base`. `inner` is the same for all operands of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Address of the first element of the first row.
    pub base: *mut u8,
    /// Elements between consecutive rows of a group of `inner` rows.
    pub inner_stride: i64,
    /// Elements between consecutive groups of `inner` rows.
    pub outer_stride: i64,
}

impl Rows {
    /// Returns an operand with a single row, such as the weight of a norm. A kernel combines this row with
    /// every row of its other operands.
    #[inline(always)]
    pub fn single(base: *const u8) -> Self {
        Self { base: base.cast_mut(), inner_stride: 0, outer_stride: 0 }
    }

    /// Returns whether 16-byte vectors can access all rows: all rows start and end at a multiple of 16 bytes.
    /// A row has `cols` elements, and `element` is the size of one element in bytes.
    pub fn is_vector(&self, cols: u32, element: usize) -> bool {
        self.is_aligned(cols, element, 16)
    }

    /// Returns whether all rows start and end at a boundary of an L2 cache line. A row has `cols` elements,
    /// and `element` is the size of one element in bytes.
    pub fn is_lines(&self, cols: u32, element: usize) -> bool {
        self.is_aligned(cols, element, l2::LINE as usize)
    }

    /// Returns whether a thread can write `len` consecutive 8-bit floats with one store in all rows. A row
    /// has `cols` elements. [`fp8::Fp8RowMut`] writes such rows.
    pub fn is_fp8_vector(&self, cols: u32, len: u32) -> bool {
        self.is_aligned(cols, 1, len as usize)
    }

    /// Returns whether all rows start and end at an address that is a multiple of `bytes`. A row has `cols`
    /// elements, and `element` is the size of one element in bytes.
    pub(crate) fn is_aligned(&self, cols: u32, element: usize, bytes: usize) -> bool {
        let aligned = |elements: i64| (elements * element as i64) % bytes as i64 == 0;
        (self.base as usize).is_multiple_of(bytes)
            && aligned(self.inner_stride)
            && aligned(self.outer_stride)
            && aligned(i64::from(cols))
    }

    /// Returns whether both strides fit in 32 bits and are not negative. The computation of a row's address
    /// then needs only 32-bit factors, if [`RowIndex::narrow`] computed the index.
    pub fn is_near(&self) -> bool {
        [self.inner_stride, self.outer_stride].iter().all(|stride| u32::try_from(*stride).is_ok())
    }

    /// Returns the address of the row with index `at`. [`RowIndex::narrow`] must have computed `at`, and the
    /// rows must satisfy [`Rows::is_near`].
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

/// The columns of a row that the calling thread accesses.
#[derive(Clone, Copy)]
struct Columns<const VECTOR: bool> {
    rank: u32,
    size: u32,
    /// Number of columns in the row, or 0 if the team (the threads that share a row) has no row.
    cols: u32,
}

impl<const VECTOR: bool> Columns<VECTOR> {
    #[inline(always)]
    fn of(team: Team, at: RowIndex, cols: u32) -> Self {
        Self { rank: team.rank, size: team.size, cols: if at.exists { cols } else { 0 } }
    }
    /// Returns the first column of the row that this thread accesses. Each thread accesses `len` columns per
    /// tile.
    #[inline(always)]
    fn base(&self, len: u32) -> u32 {
        if VECTOR { self.rank * len } else { self.rank }
    }
    /// Returns the distance, in columns, from the thread's first column in the row to its first column in
    /// tile number `tile`. The distance is the same for all threads, so it need not take a register in each
    /// thread.
    #[inline(always)]
    fn offset(&self, tile: u32, len: u32) -> u32 {
        tile * self.size * len
    }
    /// Returns the distance, in columns, between consecutive elements that this thread accesses in a tile.
    #[inline(always)]
    fn step(&self) -> u32 {
        if VECTOR { 1 } else { self.size }
    }
    /// Returns whether the column `base(len) + offset` lies inside the row.
    #[inline(always)]
    fn has(&self, offset: u32, len: u32) -> bool {
        self.base(len) + offset < self.cols
    }
    #[inline(always)]
    fn tiles(&self, len: u32) -> u32 {
        self.cols.div_ceil(self.size * len)
    }
}

/// A row that kernels read.
#[derive(Clone, Copy)]
pub struct Row<T, const VECTOR: bool> {
    start: *const T,
    columns: Columns<VECTOR>,
}

impl<T: Elem, const VECTOR: bool> Row<T, VECTOR> {
    /// Returns row `at` of `rows`, for reading. If the row does not exist, all its columns read as zero.
    ///
    /// # Safety
    /// While the kernel runs, every row of `rows` has `cols` readable elements. If `VECTOR`, the rows satisfy
    /// [`Rows::is_vector`].
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, team: Team, at: RowIndex, cols: u32) -> Self {
        Self { start: rows.start(at), columns: Columns::of(team, at, cols) }
    }

    /// Returns the address of the first column that this thread accesses.
    #[inline(always)]
    pub fn first(&self) -> *const T {
        self.start.wrapping_add(self.columns.base(Pack::<T>::LEN) as usize)
    }

    /// Loads the pack (16-byte vector) that this thread has in tile number `tile`. Columns past the end of
    /// the row read as zero.
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
        // SAFETY: the load reads the thread's pack (16 bytes). `has` checked that the pack starts inside the
        // row. The caller of the constructor `of` guaranteed that the row is readable and consists of whole
        // packs.
        Pack::from_words(unsafe { mem::load_u32x4(at.cast(), hint) })
    }

    /// Resets the L2 eviction priority to `evict_normal` for the cache line that starts at the thread's pack
    /// (16-byte vector) of `tile`, if any. [`L2Policy`](crate::simt::l2::L2Policy) explains the reason.
    ///
    /// # Safety
    /// The rows start and end at a boundary of an L2 cache line.
    #[inline(always)]
    pub unsafe fn demote(&self, tile: u32) {
        let len = Pack::<T>::LEN;
        let offset = self.columns.offset(tile, len);
        let begins = ((self.columns.base(len) + offset) * size_of::<T>() as u32).is_multiple_of(l2::LINE);
        if VECTOR && begins && self.columns.has(offset, len) {
            // SAFETY: `demote` accesses the cache line at the start of the thread's pack (16 bytes). The
            // caller guarantees that the row consists of whole cache lines, so this line lies inside the row.
            unsafe { l2::demote(self.first().wrapping_add(offset as usize).cast()) };
        }
    }

    /// Loads the thread's columns of tile number `tile` as f32. A tile has `L::LEN` columns per thread.
    /// Columns past the end of the row read as zero.
    ///
    /// Example: a kernel reads a bf16 input and an f32 weight. A thread's pack (16-byte vector) of the input
    /// has eight elements, so the thread also loads eight columns of the weight.
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
                // SAFETY: the load reads one pack of the thread's columns. `L::LEN` is a multiple of
                // `Pack::<T>::LEN`, so this pack lies inside the row. The caller of the constructor `of`
                // guaranteed that the row is readable.
                in_registers = T::unpack(unsafe { mem::load_u32x4(at.wrapping_add(i).cast(), hint) });
            }
            in_registers.get(within)
        })
    }

    /// Loads the bits of element `i` of the `len` elements that the thread accesses in tile number `tile`. A
    /// column past the end of the row reads as zero.
    #[inline(always)]
    fn element(&self, tile: u32, i: u32, len: u32, hint: Load) -> u32 {
        let offset = self.columns.offset(tile, len) + i * self.columns.step();
        if !self.columns.has(offset, len) {
            return 0;
        }
        let at =
            self.start.wrapping_add(self.columns.base(len) as usize).wrapping_add(offset as usize).cast();
        // SAFETY: the load reads one element. `has` checked that its column lies inside the row. The caller
        // of the constructor `of` guaranteed that the row is readable.
        unsafe {
            if size_of::<T>() == 2 { u32::from(mem::load_u16(at, hint)) } else { mem::load_u32(at, hint) }
        }
    }
}

/// A row that kernels write.
#[derive(Clone, Copy)]
pub struct RowMut<T, const VECTOR: bool> {
    start: *mut T,
    columns: Columns<VECTOR>,
}

impl<T: Elem, const VECTOR: bool> RowMut<T, VECTOR> {
    /// Returns row `at` of `rows`, for writing. If the row does not exist, stores to it have no effect.
    ///
    /// # Safety
    /// While the kernel runs, every row of `rows` has `cols` writable elements. No other team (group of
    /// threads that share a row) accesses the same row. If `VECTOR`, the rows satisfy [`Rows::is_vector`].
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, team: Team, at: RowIndex, cols: u32) -> Self {
        Self { start: rows.start(at), columns: Columns::of(team, at, cols) }
    }

    /// Stores the pack (16-byte vector) that this thread has in tile number `tile`. Columns past the end of
    /// the row are not written.
    #[inline(always)]
    pub fn store(&self, tile: u32, pack: Pack<T>, hint: Store) {
        let (columns, len) = (&self.columns, Pack::<T>::LEN);
        let base = self.start.wrapping_add(columns.base(len) as usize);
        let offset = columns.offset(tile, len);
        if VECTOR {
            if columns.has(offset, len) {
                // SAFETY: the store writes the thread's pack (16 bytes), which starts inside the row. The
                // caller of the constructor `of` guaranteed that the row is writable and consists of whole
                // packs, and that no other thread writes this pack.
                unsafe { mem::store_u32x4(base.wrapping_add(offset as usize).cast(), pack.words(), hint) };
            }
            return;
        }
        for i in 0..len {
            let offset = offset + i * columns.step();
            if columns.has(offset, len) {
                let at = base.wrapping_add(offset as usize).cast();
                // SAFETY: the store writes one element. `has` checked that its column lies inside the row,
                // and no other thread writes it.
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
