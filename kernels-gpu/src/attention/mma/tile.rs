//! Tiles of rows in shared memory, from which `ldmatrix` reads the operands of `mma.sync`.
use core::marker::PhantomData;

use cuda_std::mem;
use cuda_std::mma::{self, Chunk, MatrixElem};
use cuda_std::prelude::*;

/// A tile of rows with `16 * DIM16` columns in shared memory. Each row consists of chunks of 16 bytes (eight
/// elements).
#[derive(Clone, Copy)]
pub(crate) struct Tile<T, const DIM16: usize> {
    chunks: Shared<Chunk>,
    /// Index of the tile's first 16-byte chunk in the array `chunks`.
    first: u32,
    element: PhantomData<T>,
}

impl<T: MatrixElem, const DIM16: usize> Tile<T, DIM16> {
    /// Distance from one row to the next, in 16-byte chunks. The distance is odd, so that the eight rows of
    /// an 8 x 8 matrix, which `ldmatrix` reads together, are in different banks.
    const PITCH: u32 = 2 * DIM16 as u32 + 1;

    /// Allocates a tile of `rows` rows in shared memory.
    #[inline(always)]
    pub fn take(memory: &mut SharedMemory, rows: u32) -> Self {
        Self { chunks: memory.take(rows * Self::PITCH), first: 0, element: PhantomData }
    }

    /// Returns the part of the tile that starts at row `row`.
    #[inline(always)]
    pub fn at_row(&self, row: u32) -> Self {
        Self { first: self.first + row * Self::PITCH, ..*self }
    }

    /// Reads the 16 x 16 matrix at row `16 * row16` and column `16 * col16` of the tile as an A operand of an
    /// MMA.
    ///
    /// # Safety
    /// The matrix lies inside the tile. A barrier separates this read from the writes to the tile.
    #[inline(always)]
    pub unsafe fn left(&self, lanes: &FragmentLanes<DIM16>, row16: usize, col16: usize) -> mma::A {
        // SAFETY: `load` reads a 16 x 16 matrix of the tile. The caller guarantees that the matrix lies
        // inside the tile, and that a barrier separates the writes from this read.
        unsafe { mma::load(&self.chunks, self.first + lanes.along + Self::chunk16(row16, col16)) }
    }

    /// Reads the transpose of the 16 x 16 matrix at row `16 * row16` and column `16 * col16`, as two B
    /// operands of MMAs. Each row of the tile becomes a column of a B operand. The multiplication QKᵀ reads
    /// its tile of K with this function.
    ///
    /// # Safety
    /// The matrix lies inside the tile. A barrier separates this read from the writes to the tile.
    #[inline(always)]
    pub unsafe fn columns(&self, lanes: &FragmentLanes<DIM16>, row16: usize, col16: usize) -> [mma::B; 2] {
        // SAFETY: `load` reads a 16 x 16 matrix of the tile. The caller guarantees that the matrix lies
        // inside the tile, and that a barrier separates the writes from this read.
        let [a, b, c, d] =
            unsafe { mma::load(&self.chunks, self.first + lanes.across + Self::chunk16(row16, col16)) };
        [[a, b], [c, d]]
    }

    /// Reads the 16 x 16 matrix at row `16 * row16` and column `16 * col16`. Its left and its right eight
    /// columns become two B operands of MMAs. The multiplication PV reads its tile of V with this function.
    ///
    /// # Safety
    /// The matrix lies inside the tile. A barrier separates this read from the writes to the tile.
    #[inline(always)]
    pub unsafe fn rows(&self, lanes: &FragmentLanes<DIM16>, row16: usize, col16: usize) -> [mma::B; 2] {
        // SAFETY: `load_transposed` reads a 16 x 16 matrix of the tile. The caller guarantees that the matrix
        // lies inside the tile, and that a barrier separates the writes from this read.
        let [a, b, c, d] = unsafe {
            mma::load_transposed(&self.chunks, self.first + lanes.along + Self::chunk16(row16, col16))
        };
        [[a, b], [c, d]]
    }

    /// Returns the offset from the start of a tile to its element at row `16 * row16` and column
    /// `16 * col16`, in 16-byte chunks.
    #[inline(always)]
    fn chunk16(row16: usize, col16: usize) -> u32 {
        16 * row16 as u32 * Self::PITCH + 2 * col16 as u32
    }

    /// Writes the two elements in `word` to the columns `2 * pair` and `2 * pair + 1` of row `row`.
    ///
    /// # Safety
    /// The columns lie inside the tile. A barrier separates this write from accesses of other threads to
    /// these columns.
    #[inline(always)]
    pub unsafe fn put(&self, row: u32, pair: u32, word: u32) {
        // SAFETY: the store writes one word with two columns of the tile. The caller guarantees that these
        // columns lie inside the tile, and that no other thread accesses them.
        unsafe { self.chunks.cast::<u32>().set((self.first + row * Self::PITCH) * 4 + pair, word) };
    }

    /// Starts an asynchronous copy of 16 bytes from `from` to chunk number `chunk` of row `row`. If `wanted`
    /// is false, this function fills the chunk with zeros and does not read `from`.
    ///
    /// # Safety
    /// If `wanted` is true, the 16 bytes at `from` are readable and aligned. The chunk lies inside the tile,
    /// and no thread accesses the chunk until the copy is complete.
    #[inline(always)]
    pub unsafe fn copy_chunk(&self, row: u32, chunk: u32, from: *const T, wanted: bool) {
        // SAFETY: the caller guarantees that the source is readable if `wanted` is true, and that no thread
        // accesses the destination 16-byte chunk.
        unsafe { self.chunks.copy_or_zero(self.first + row * Self::PITCH + chunk, from.cast(), wanted) };
    }

    /// Reads chunk number `chunk` (16 bytes) of row `row`.
    ///
    /// # Safety
    /// The chunk lies inside the tile. A barrier separates this read from the writes to the tile.
    #[inline(always)]
    pub unsafe fn chunk(&self, row: u32, chunk: u32) -> Chunk {
        // SAFETY: the load reads one 16-byte chunk of the tile. The caller guarantees that the chunk lies
        // inside the tile, and that a barrier separates the writes from this read.
        unsafe { self.chunks.get(self.first + row * Self::PITCH + chunk) }
    }
}

/// Two offsets from which a lane computes its addresses for `ldmatrix`. One `ldmatrix` reads a 16 x 16 matrix
/// as four 8 x 8 matrices. Each lane passes the address of one row of an 8 x 8 matrix. An offset is the
/// distance from the start of the 16 x 16 matrix to this lane's row, in 16-byte chunks.
///
/// [`Tile::left`] and [`Tile::rows`] use the offset `along`. [`Tile::columns`] uses the offset `across`.
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

/// Copies rows of one attention head from global memory to a tile in shared memory. All threads of the block
/// copy together, in several passes. In each pass, the block copies several rows, and a thread copies at most
/// one 16-byte chunk. A thread copies the same columns in every pass.
pub(crate) struct Copier<T, const DIM16: usize> {
    /// Address of this thread's 16-byte chunk in the first row of the head.
    from: *const T,
    /// Elements from one row to the next.
    stride: i64,
    /// Number of rows in the sequence.
    rows: u32,
    /// This thread's row in the first pass.
    row: u32,
    /// Index of this thread's 16-byte chunk in each row.
    chunk: u32,
    /// Number of columns of this thread's 16-byte chunk that exist, 0 to 8. Columns after the head dimension
    /// do not exist.
    cols: u32,
    /// Rows that the block copies per pass.
    pass: u32,
    /// True if every thread of the block copies a 16-byte chunk in each pass, and all columns of every chunk
    /// exist.
    whole: bool,
}

impl<T: MatrixElem, const DIM16: usize> Copier<T, DIM16> {
    /// Threads that copy one row.
    const TEAM: u32 = (2 * DIM16 as u32).next_power_of_two();

    /// Creates this thread's copier for a head with `rows` rows and `dim` columns.
    #[inline(always)]
    pub fn of(head: *const T, stride: i64, [rows, dim]: [u32; 2], threads: u32) -> Self {
        let thread = thread::index()[0];
        let (row, chunk) = (thread / Self::TEAM, thread % Self::TEAM);
        let cols = dim.saturating_sub(8 * chunk).min(8);
        let whole = Self::TEAM == 2 * DIM16 as u32 && dim == 16 * DIM16 as u32;
        let from = head.wrapping_add(8 * chunk as usize);
        Self { from, stride, rows, row, chunk, cols, pass: threads / Self::TEAM, whole }
    }

    /// Starts to copy `count` rows of the head, from row `first` on. Elements of the tile become zero if they
    /// are outside the rows and columns of the head. If `vector` is false, the threads read single elements.
    /// If `vector` is true, the threads use 16-byte copies. All rows must then be aligned to 16 bytes, and
    /// the length of a row must be a multiple of 16 bytes.
    ///
    /// # Safety
    /// The rows of the head are readable. The tile has `count` rows, and no thread accesses the tile until
    /// the copies are complete.
    #[inline(always)]
    pub unsafe fn copy(&self, tile: &Tile<T, DIM16>, first: u32, count: u32, vector: bool) {
        let mut row = first + self.row;
        let step = (i64::from(self.pass) * self.stride) as isize;
        let mut from = self.from.wrapping_offset((i64::from(row) * self.stride) as isize);
        let mut at = tile.first + self.row * Tile::<T, DIM16>::PITCH + self.chunk;
        if vector && self.whole && first + count <= self.rows {
            for _ in 0..count / self.pass {
                // SAFETY: the copy reads a 16-byte chunk of a row that belongs to the head, because the
                // condition above checked all rows. The copy writes a chunk of the tile, and the caller
                // guarantees that no other thread accesses the tile.
                unsafe { tile.chunks.copy_or_zero(at, from.cast(), true) };
                at += self.pass * Tile::<T, DIM16>::PITCH;
                from = from.wrapping_offset(step);
            }
            return;
        }
        // This loop runs only if the fast loop above does not apply, for example for a partial tile. The
        // optimization barrier `opaque` prevents loop unrolling, which would only make the code longer.
        let [passes, _] = thread::opaque([count / self.pass, 0]);
        for _ in 0..passes {
            if self.chunk < 2 * DIM16 as u32 {
                let cols = if row < self.rows { self.cols } else { 0 };
                // SAFETY: a copy or load reads `cols` columns of a row. For a row outside the head, `cols` is
                // 0, so nothing is read. The copy writes to the tile, and the caller guarantees that no other
                // thread accesses it.
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

    /// Reads `cols` elements from `from`. Returns a 16-byte chunk with these elements, followed by zeros.
    ///
    /// # Safety
    /// The `cols` elements at `from` are readable.
    #[inline(always)]
    unsafe fn gather(from: *const T, cols: u32) -> Chunk {
        let bits = |at: u32| {
            if at >= cols {
                return 0;
            }
            // SAFETY: the load reads element number `at`, counted from `from`. `at` is less than `cols`, and
            // the caller guarantees that `cols` elements at `from` are readable.
            u32::from(unsafe { mem::load_u16(from.wrapping_add(at as usize).cast(), Load::ReadOnly) })
        };
        Chunk([0, 2, 4, 6].map(|at| bits(at) | bits(at + 1) << 16))
    }
}
