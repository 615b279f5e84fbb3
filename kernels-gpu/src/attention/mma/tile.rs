//! Rows of heads in shared memory, as matrices are read from them.
use core::marker::PhantomData;

use cuda_std::mem;
use cuda_std::mma::{self, Chunk, MatrixElem};
use cuda_std::prelude::*;

/// `rows` rows of `16 DIM16` columns.
#[derive(Clone, Copy)]
pub(crate) struct Tile<T, const DIM16: usize> {
    chunks: Shared<Chunk>,
    /// The first chunk: of one tile of several.
    first: u32,
    element: PhantomData<T>,
}

impl<T: MatrixElem, const DIM16: usize> Tile<T, DIM16> {
    /// Chunks from a row to the next.
    const PITCH: u32 = 2 * DIM16 as u32 + 1;

    #[inline(always)]
    pub fn take(memory: &mut SharedMemory, rows: u32) -> Self {
        Self { chunks: memory.take(rows * Self::PITCH), first: 0, element: PhantomData }
    }

    /// The tile of these rows on.
    #[inline(always)]
    pub fn at_row(&self, row: u32) -> Self {
        Self { first: self.first + row * Self::PITCH, ..*self }
    }

    /// The 16 x 16 matrix at row `16 row16` and column `16 col16`, as a left one.
    ///
    /// # Safety
    /// A barrier stands between this and the writes.
    #[inline(always)]
    pub unsafe fn left(&self, lanes: &FragmentLanes<DIM16>, row16: usize, col16: usize) -> mma::A {
        // SAFETY: inside the tile; otherwise as the caller promises.
        unsafe { mma::load(&self.chunks, self.first + lanes.along + Self::chunk16(row16, col16)) }
    }

    /// The same matrix as two right ones side by side, of which each row gives a column.
    ///
    /// # Safety
    /// As [`Tile::left`].
    #[inline(always)]
    pub unsafe fn columns(&self, lanes: &FragmentLanes<DIM16>, row16: usize, col16: usize) -> [mma::B; 2] {
        // SAFETY: inside the tile; otherwise as the caller promises.
        let [a, b, c, d] =
            unsafe { mma::load(&self.chunks, self.first + lanes.across + Self::chunk16(row16, col16)) };
        [[a, b], [c, d]]
    }

    /// The same matrix as two right ones side by side.
    ///
    /// # Safety
    /// As [`Tile::left`].
    #[inline(always)]
    pub unsafe fn rows(&self, lanes: &FragmentLanes<DIM16>, row16: usize, col16: usize) -> [mma::B; 2] {
        // SAFETY: inside the tile; otherwise as the caller promises.
        let [a, b, c, d] = unsafe {
            mma::load_transposed(&self.chunks, self.first + lanes.along + Self::chunk16(row16, col16))
        };
        [[a, b], [c, d]]
    }

    /// Chunks before the matrix at row `16 row16` and column `16 col16`.
    #[inline(always)]
    fn chunk16(row16: usize, col16: usize) -> u32 {
        16 * row16 as u32 * Self::PITCH + 2 * col16 as u32
    }

    /// Writes two neighbouring elements of a row: columns `2 pair` and `2 pair + 1`.
    ///
    /// # Safety
    /// Nobody else reads or writes there without a barrier between.
    #[inline(always)]
    pub unsafe fn put(&self, row: u32, pair: u32, word: u32) {
        // SAFETY: inside the tile; otherwise as the caller promises.
        unsafe { self.chunks.cast::<u32>().set((self.first + row * Self::PITCH) * 4 + pair, word) };
    }

    /// Begins to copy a chunk of a row, or makes it zero if it is not `wanted`.
    ///
    /// # Safety
    /// It is readable, if it is wanted; nobody uses the tile.
    #[inline(always)]
    pub unsafe fn copy_chunk(&self, row: u32, chunk: u32, from: *const T, wanted: bool) {
        // SAFETY: inside the tile; otherwise as the caller promises.
        unsafe { self.chunks.copy_or_zero(self.first + row * Self::PITCH + chunk, from.cast(), wanted) };
    }

    /// A chunk of a row.
    ///
    /// # Safety
    /// As [`Tile::left`].
    #[inline(always)]
    pub unsafe fn chunk(&self, row: u32, chunk: u32) -> Chunk {
        // SAFETY: inside the tile; otherwise as the caller promises.
        unsafe { self.chunks.get(self.first + row * Self::PITCH + chunk) }
    }
}

/// The chunks of a 16 x 16 matrix that the lane names: in a left matrix or the rows of two right ones, and in right ones of
/// which each row is a column.
#[derive(Clone, Copy)]
pub(crate) struct FragmentLanes<const DIM16: usize> {
    along: u32,
    across: u32,
}

impl<const DIM16: usize> FragmentLanes<DIM16> {
    #[inline(always)]
    pub fn new() -> Self {
        let (lane, pitch) = (warp::lane(), 2 * DIM16 as u32 + 1);
        let along = lane % 16 * pitch + lane / 16;
        let across = (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2;
        Self { along, across }
    }
}

/// How the block's threads copy the rows of a head into tiles: a thread has one chunk of a row, the same one in every pass.
pub(crate) struct Copier<T, const DIM16: usize> {
    /// The chunk in the head's first row.
    from: *const T,
    /// Elements from a row to the next.
    stride: i64,
    /// Rows that there are.
    rows: u32,
    /// The thread's first row, and its chunk.
    row: u32,
    chunk: u32,
    /// Columns of the chunk that there are.
    cols: u32,
    /// Rows that one pass copies.
    pass: u32,
    /// Has every thread a chunk of its own, with all columns?
    whole: bool,
}

impl<T: MatrixElem, const DIM16: usize> Copier<T, DIM16> {
    /// Threads that share a row.
    const TEAM: u32 = (2 * DIM16 as u32).next_power_of_two();

    /// Of a head with so many rows and columns, by a block of so many threads.
    #[inline(always)]
    pub fn of(head: *const T, stride: i64, [rows, dim]: [u32; 2], threads: u32) -> Self {
        let thread = thread::index()[0];
        let (row, chunk) = (thread / Self::TEAM, thread % Self::TEAM);
        let cols = dim.saturating_sub(8 * chunk).min(8);
        let whole = Self::TEAM == 2 * DIM16 as u32 && dim == 16 * DIM16 as u32;
        let from = head.wrapping_add(8 * chunk as usize);
        Self { from, stride, rows, row, chunk, cols, pass: threads / Self::TEAM, whole }
    }

    /// Begins to copy `count` rows from row `first` on; what there is not becomes zero. With `vector`, rows are aligned to
    /// 16 bytes and so long; else they are read element by element.
    ///
    /// # Safety
    /// The rows are readable, the tile has so many rows, and nobody uses it.
    #[inline(always)]
    pub unsafe fn copy(&self, tile: &Tile<T, DIM16>, first: u32, count: u32, vector: bool) {
        let mut row = first + self.row;
        let step = (i64::from(self.pass) * self.stride) as isize;
        let mut from = self.from.wrapping_offset((i64::from(row) * self.stride) as isize);
        let mut at = tile.first + self.row * Tile::<T, DIM16>::PITCH + self.chunk;
        if vector && self.whole && first + count <= self.rows {
            for _ in 0..count / self.pass {
                // SAFETY: as the caller promises.
                unsafe { tile.chunks.copy_or_zero(at, from.cast(), true) };
                at += self.pass * Tile::<T, DIM16>::PITCH;
                from = from.wrapping_offset(step);
            }
            return;
        }
        // Not unrolled: at the end of a sequence.
        let [passes, _] = thread::opaque([count / self.pass, 0]);
        for _ in 0..passes {
            if self.chunk < 2 * DIM16 as u32 {
                let cols = if row < self.rows { self.cols } else { 0 };
                // SAFETY: as the caller promises.
                unsafe {
                    if vector {
                        tile.chunks.copy_or_zero(at, from.cast(), cols > 0);
                    } else {
                        tile.chunks.set(at, Self::gather(from, cols));
                    }
                }
            }
            row += self.pass;
            at += self.pass * Tile::<T, DIM16>::PITCH;
            from = from.wrapping_offset(step);
        }
    }

    /// `cols` elements, then zeros.
    ///
    /// # Safety
    /// They are readable.
    #[inline(always)]
    unsafe fn gather(from: *const T, cols: u32) -> Chunk {
        let bits = |at: u32| {
            if at >= cols {
                return 0;
            }
            // SAFETY: as the caller promises.
            u32::from(unsafe { mem::load_u16(from.wrapping_add(at as usize).cast(), Load::ReadOnly) })
        };
        Chunk([0, 2, 4, 6].map(|at| bits(at) | bits(at + 1) << 16))
    }
}
