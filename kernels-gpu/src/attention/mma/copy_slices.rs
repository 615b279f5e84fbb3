//! Copies that begin one by one, between products: each of a row by a warp, or of as many as its lanes have chunks for.
//!
//! At the end of the registers: what a block knows lies in shared memory and is read for each tile, and an address follows
//! from the one before only.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::tile::Tile;
use super::tile_coords::TileCoords;

/// A warp's part of tiles' rows: those of its number among each `warps` copies.
#[derive(Clone, Copy)]
pub(super) struct WarpCopies<const DIM16: usize> {
    pub warp: u32,
    pub warps: u32,
    /// Columns of a head that there are.
    pub dim: u32,
}

impl<const DIM16: usize> WarpCopies<DIM16> {
    /// Lanes that share a row, of a chunk each.
    const TEAM: u32 = 2 * DIM16 as u32;
    /// Rows of a copy.
    const ROWS: u32 = warp::SIZE / Self::TEAM;
    /// Are addresses of rows the warp's? Then they stay in uniform registers.
    const UNIFORM: bool = Self::ROWS == 1;

    /// The warp's copies of a tile of so many rows.
    #[inline(always)]
    const fn copies(&self, rows: u32) -> u32 {
        rows / (self.warps * Self::ROWS)
    }

    /// The lane's row of the warp's first copy.
    #[inline(always)]
    fn first(&self) -> u32 {
        self.warp * Self::ROWS + if Self::UNIFORM { 0 } else { warp::lane() / Self::TEAM }
    }

    /// The lane's chunk of each row.
    #[inline(always)]
    fn chunk() -> u32 {
        warp::lane() % Self::TEAM
    }

    /// Rows that the lane may copy, of `rows` that there are: those whose number in the tensor is less, the lane's first left
    /// out. None where the lane has no column.
    #[inline(always)]
    pub fn limit(&self, rows: u32) -> i32 {
        if 8 * Self::chunk() < self.dim { rows as i32 - self.first() as i32 } else { i32::MIN }
    }

    /// The copies of a tile of rows from number `first` on.
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

/// The copies of a tile.
pub(super) struct Copies<T, const DIM16: usize> {
    /// The next row; the lane's chunk of it, unless rows are the warp's.
    from: *const T,
    /// Elements from there to the one behind.
    step: isize,
    copies_of_warp: WarpCopies<DIM16>,
    first: u32,
    limit: i32,
}

impl<T: MatrixElem, const DIM16: usize> Copies<T, DIM16> {
    /// Begins the next copy, number `number`; zeros for what there is not.
    ///
    /// # Safety
    /// The head is readable, 16 bytes at a time; the tile has so many rows, and nobody uses it.
    #[inline(always)]
    unsafe fn next(&mut self, tile: &Tile<T, DIM16>, number: u32) {
        let (row, chunk) =
            (number * self.copies_of_warp.warps * WarpCopies::<DIM16>::ROWS, WarpCopies::<DIM16>::chunk());
        let uniform = WarpCopies::<DIM16>::UNIFORM;
        let from = if uniform { self.from.wrapping_add(8 * chunk as usize) } else { self.from };
        let wanted = ((self.first + row) as i32) < self.limit;
        // SAFETY: as the caller promises.
        unsafe { tile.copy_chunk(self.copies_of_warp.first() + row, chunk, from, wanted) };
        // Else all rows' distances stay in registers.
        self.from = thread::opaque_address(self.from.wrapping_offset(self.step));
    }

    /// Begins a copy behind products, of which this pair is number `pair` of `pairs`, until `rows` rows are begun: over the
    /// first half of them, so that what was asked for last is there when the others are done.
    ///
    /// # Safety
    /// As [`Copies::next`].
    #[inline(always)]
    pub unsafe fn operands(&mut self, tile: &Tile<T, DIM16>, rows: u32, [pair, pairs]: [usize; 2]) {
        let copies = self.copies_of_warp.copies(rows);
        let every = pairs / 2 / copies as usize;
        if pair % every == every - 1 && pair / every < copies as usize {
            // SAFETY: as the caller promises.
            unsafe { self.next(tile, (pair / every) as u32) };
        }
    }

    /// Begins all copies of a tile of `rows` rows.
    ///
    /// # Safety
    /// As [`Copies::next`].
    #[inline(always)]
    pub unsafe fn all(&mut self, tile: &Tile<T, DIM16>, rows: u32) {
        for number in 0..self.copies_of_warp.copies(rows) {
            // SAFETY: as the caller promises.
            unsafe { self.next(tile, number) };
        }
    }
}

/// What a block keeps in shared memory, for want of registers: it is read where it is wanted.
#[derive(Clone, Copy)]
pub(super) struct BlockState<T> {
    pub coords: TileCoords,
    /// Keys and values.
    pub heads: [*const T; 2],
}

impl<T> BlockState<T> {
    /// Put there by the block's first thread; a barrier before it is read.
    #[inline(always)]
    pub fn put(self, memory: &mut SharedMemory) -> Shared<Self>
    where
        T: Copy,
    {
        let block_state = memory.take(1);
        if thread::index()[0] == 0 {
            // SAFETY: nobody else writes it, or reads it before the barrier.
            unsafe { block_state.set(0, self) };
        }
        block_state
    }
}
