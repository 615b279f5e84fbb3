//! Copies that begin one by one, between products: each of a row, by a warp.
//!
//! At the end of the registers: what a block knows lies in shared memory and is read for each tile, and an address follows
//! from the one before only.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::place::Place;
use super::tile::Tile;

/// Columns of a head, in units of 16: a row is a chunk for each lane of a warp.
pub(super) const DIM16: usize = 16;

/// Pairs of products from a copy to the next: few, so that what was asked for last is there when the others are done.
const PAIRS: usize = 4;

/// A warp's part of tiles' rows: those that number `warp` and each `warps`-th behind it.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub warp: u32,
    pub warps: u32,
    /// Columns of a head that there are.
    pub dim: u32,
}

impl Share {
    /// Rows that the warp may copy, of `rows` that there are: those whose number in the tensor is less, the warp's left out.
    /// None where the lane has no column.
    #[inline(always)]
    pub fn limit(&self, rows: u32) -> i32 {
        if 8 * warp::lane() < self.dim { rows as i32 - self.warp as i32 } else { i32::MIN }
    }

    /// The copies of a tile of rows from number `first` on.
    #[inline(always)]
    pub fn of<T: MatrixElem>(&self, head: *const T, stride: i64, first: u32, limit: i32) -> Copies<T> {
        let from = head.wrapping_offset((i64::from(first + self.warp) * stride) as isize);
        Copies { from, step: (i64::from(self.warps) * stride) as isize, share: *self, first, limit }
    }
}

/// The copies of a tile.
pub(super) struct Copies<T> {
    /// The next row.
    from: *const T,
    /// Elements from there to the one behind.
    step: isize,
    share: Share,
    first: u32,
    limit: i32,
}

impl<T: MatrixElem> Copies<T> {
    /// Begins the next copy, number `number`; zeros for what there is not.
    ///
    /// # Safety
    /// The head is readable, 16 bytes at a time; the tile has so many rows, and nobody uses it.
    #[inline(always)]
    unsafe fn next(&mut self, tile: &Tile<T, DIM16>, number: u32) {
        let (row, lane) = (number * self.share.warps, warp::lane());
        let from = self.from.wrapping_add(8 * lane as usize);
        let wanted = ((self.first + row) as i32) < self.limit;
        // SAFETY: as the caller promises.
        unsafe { tile.copy_chunk(self.share.warp + row, lane, from, wanted) };
        // Else all rows' distances stay in registers.
        self.from = thread::forget_address(self.from.wrapping_offset(self.step));
    }

    /// Begins a copy behind each so many-th pair of products, of which this is number `pair`, until `rows` rows are begun.
    ///
    /// # Safety
    /// As [`Copies::next`].
    #[inline(always)]
    pub unsafe fn beside(&mut self, tile: &Tile<T, DIM16>, rows: u32, pair: usize) {
        let number = (pair / PAIRS) as u32;
        if pair % PAIRS == PAIRS - 1 && number < rows / self.share.warps {
            // SAFETY: as the caller promises.
            unsafe { self.next(tile, number) };
        }
    }

    /// Begins all copies of a tile of `rows` rows.
    ///
    /// # Safety
    /// As [`Copies::next`].
    #[inline(always)]
    pub unsafe fn all(&mut self, tile: &Tile<T, DIM16>, rows: u32) {
        for number in 0..rows / self.share.warps {
            // SAFETY: as the caller promises.
            unsafe { self.next(tile, number) };
        }
    }
}

/// What a block keeps in shared memory, for want of registers: it is read where it is wanted.
#[derive(Clone, Copy)]
pub(super) struct Kept<T> {
    pub place: Place,
    /// Keys and values.
    pub heads: [*const T; 2],
}

impl<T> Kept<T> {
    /// Put there by the block's first thread; a barrier before it is read.
    #[inline(always)]
    pub fn put(self, memory: &mut SharedMemory) -> Shared<Self>
    where
        T: Copy,
    {
        let kept = memory.take(1);
        if thread::index()[0] == 0 {
            // SAFETY: nobody else writes it, or reads it before the barrier.
            unsafe { kept.set(0, self) };
        }
        kept
    }
}
