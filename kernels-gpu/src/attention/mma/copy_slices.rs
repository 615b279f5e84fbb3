//! Asynchronous copies of rows from global to shared memory. A warp issues these copies one by one between
//! its MMAs.
//!
//! A row has `2 * DIM16` chunks of 16 bytes, and each lane copies one chunk per copy instruction. A row has
//! at most 32 chunks. If it has fewer, one copy instruction of a warp copies chunks of several rows.
//!
//! The attention forward kernel with one buffer per operand uses these copies. This kernel has no free
//! registers. It therefore keeps tile coordinates and pointers in shared memory. It also keeps only one
//! source address, to which it adds a fixed distance after each copy.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::tile::Tile;
use super::tile_coords::TileCoords;

/// Determines which rows of a tile each warp copies. One copy instruction of a warp copies one row or a few
/// consecutive rows. The copy instructions of all warps are numbered in the order of their rows, and number
/// `n` belongs to warp `n % warps`.
#[derive(Clone, Copy)]
pub(super) struct WarpCopies<const DIM16: usize> {
    /// The warp's index in the block.
    pub warp: u32,
    /// Warps per block.
    pub warps: u32,
    /// Head dimension.
    pub dim: u32,
}

impl<const DIM16: usize> WarpCopies<DIM16> {
    /// Lanes that copy one row. Each lane copies one 16-byte chunk.
    const TEAM: u32 = 2 * DIM16 as u32;
    /// Rows per copy instruction of a warp.
    const ROWS: u32 = warp::SIZE / Self::TEAM;
    /// True if one copy instruction of a warp copies exactly one row. All lanes then have the same row
    /// address, which the compiler keeps in uniform registers.
    const UNIFORM: bool = Self::ROWS == 1;

    /// Returns the number of copies that the warp issues for a tile of `rows` rows.
    #[inline(always)]
    const fn copies(&self, rows: u32) -> u32 {
        rows / (self.warps * Self::ROWS)
    }

    /// Returns the index in the tile of the row that this lane accesses in the warp's first copy instruction.
    #[inline(always)]
    fn first(&self) -> u32 {
        self.warp * Self::ROWS + if Self::UNIFORM { 0 } else { warp::lane() / Self::TEAM }
    }

    /// Returns the index of the 16-byte chunk that this lane copies in each row.
    #[inline(always)]
    fn chunk() -> u32 {
        warp::lane() % Self::TEAM
    }

    /// Returns the number of rows from this lane's first row in the sequence to the end of the sequence,
    /// which has `rows` rows. [`WarpCopies::of`] takes this limit, so that the lane reads no row outside the
    /// sequence. If the columns of the lane's 16-byte chunk do not exist, the limit is `i32::MIN`, so that
    /// the lane reads nothing.
    #[inline(always)]
    pub fn limit(&self, rows: u32) -> i32 {
        if 8 * Self::chunk() < self.dim { rows as i32 - self.first() as i32 } else { i32::MIN }
    }

    /// Returns the copies that the warp issues for one tile. The tile starts at row `first` of the head at
    /// address `head`.
    #[inline(always)]
    pub fn of<T: MatrixElem>(&self, head: *const T, stride: i64, first: u32, limit: i32) -> Copies<T, DIM16> {
        let row = head.wrapping_offset((i64::from(first + self.first()) * stride) as isize);
        let from = if Self::UNIFORM { row } else { row.wrapping_add(8 * Self::chunk() as usize) };
        Copies {
            from,
            step: (i64::from(self.warps * Self::ROWS) * stride) as isize,
            copies_of_warp: *self,
            first,
            limit,
        }
    }
}

/// The copies of one tile that a warp still has to issue.
pub(super) struct Copies<T, const DIM16: usize> {
    /// Source address of the next copy. If `UNIFORM` is true, `from` points to the start of the row.
    /// Otherwise, it points to this lane's 16-byte chunk of the row.
    from: *const T,
    /// Distance between the source addresses of consecutive copies, in elements.
    step: isize,
    copies_of_warp: WarpCopies<DIM16>,
    /// First row of the tile.
    first: u32,
    /// Result of [`WarpCopies::limit`]. It prevents reads of rows outside the sequence.
    limit: i32,
}

impl<T: MatrixElem, const DIM16: usize> Copies<T, DIM16> {
    /// Issues copy number `number` of the warp's copies for a tile. Tile elements become zero if their row is
    /// outside the sequence or their column is outside the head dimension.
    ///
    /// # Safety
    /// The rows of the head are readable with 16-byte accesses. `tile` has space for the copied rows, and no
    /// thread accesses these rows of `tile` until the copy is complete.
    #[inline(always)]
    unsafe fn next(&mut self, tile: &Tile<T, DIM16>, number: u32) {
        let (row, chunk) =
            (number * self.copies_of_warp.warps * WarpCopies::<DIM16>::ROWS, WarpCopies::<DIM16>::chunk());
        let uniform = WarpCopies::<DIM16>::UNIFORM;
        let from = if uniform { self.from.wrapping_add(8 * chunk as usize) } else { self.from };
        let wanted = ((self.first + row) as i32) < self.limit;
        // SAFETY: `copy_chunk` reads global memory only if `wanted` is true. `wanted` is false for rows
        // outside the sequence, so the row that it reads exists. The caller guarantees that no thread
        // accesses the destination.
        unsafe { tile.copy_chunk(self.copies_of_warp.first() + row, chunk, from, wanted) };
        // Without the optimization barrier `opaque_address`, the compiler would keep the source offsets of
        // all copies in registers.
        self.from = thread::opaque_address(self.from.wrapping_offset(self.step));
    }

    /// Issues at most one copy for a tile of `rows` rows. The caller executes `pairs` groups of MMAs, and
    /// calls this function after each group with the group's number `pair`. The function issues all copies
    /// during the first half of the groups, so that the last copy can complete during the second half.
    ///
    /// # Safety
    /// The rows of the head are readable with 16-byte accesses. `tile` has `rows` rows, and no thread
    /// accesses them until the copies are complete.
    #[inline(always)]
    pub unsafe fn operands(&mut self, tile: &Tile<T, DIM16>, rows: u32, [pair, pairs]: [usize; 2]) {
        let copies = self.copies_of_warp.copies(rows);
        let every = pairs / 2 / copies as usize;
        if pair % every == every - 1 && pair / every < copies as usize {
            // SAFETY: the caller guarantees that the rows of the head are readable, and that no thread
            // accesses the `rows` rows of the tile.
            unsafe { self.next(tile, (pair / every) as u32) };
        }
    }

    /// Issues all copies of the warp for a tile of `rows` rows.
    ///
    /// # Safety
    /// The rows of the head are readable with 16-byte accesses. `tile` has `rows` rows, and no thread
    /// accesses them until the copies are complete.
    #[inline(always)]
    pub unsafe fn all(&mut self, tile: &Tile<T, DIM16>, rows: u32) {
        for number in 0..self.copies_of_warp.copies(rows) {
            // SAFETY: the caller guarantees that the rows of the head are readable, and that no thread
            // accesses the `rows` rows of the tile.
            unsafe { self.next(tile, number) };
        }
    }
}

/// Values that a block keeps in shared memory, because registers have no space for them.
#[derive(Clone, Copy)]
pub(super) struct BlockState<T> {
    /// The coordinates of the tile that this block computes.
    pub coords: TileCoords,
    /// Pointers to the first key and to the first value of the block's sequence, in the block's key head.
    pub heads: [*const T; 2],
}

impl<T> BlockState<T> {
    /// Thread 0 writes these values to shared memory. A barrier must follow before any thread reads them.
    #[inline(always)]
    pub fn put(self, memory: &mut SharedMemory) -> Shared<Self>
    where
        T: Copy,
    {
        let block_state = memory.take(1);
        if thread::index()[0] == 0 {
            // SAFETY: only thread 0 writes this memory, and all threads read it only after a barrier.
            unsafe { block_state.set(0, self) };
        }
        block_state
    }
}
