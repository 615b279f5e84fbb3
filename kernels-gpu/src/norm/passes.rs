//! The two passes of a norm over a row: the first pass reduces the row, and the second pass writes the
//! results.
//!
//! Each warp processes one row, so the passes need no block barrier. In kernels whose access type is
//! `BlockTiles`, `BlockRegisters` or `BlockRegistersStaged`, the four warps of a block share one row instead.
//!
//! A tile is 128 columns: one vec4 (four columns) for each lane of a warp. The access type ([`Access`]) of a
//! kernel decides where the row is stored between the passes:
//!
//! - In shared memory. All tiles of a row are copied there at once, so that the copies are in flight
//!   together. Both passes then read groups of tiles from shared memory.
//! - In registers, for short rows.
//! - In global memory, for rows that do not fit in shared memory. Both passes load the row from global
//!   memory.
use cuda_std::prelude::*;
use cuda_std::vec4::{
    Access, LEN, MAX_IN_REGISTERS, TILE, is_block_shared, is_unstaged, is_vector, is_whole,
    tiles_in_registers,
};

use super::io::{Sink, Source};
use super::reduce::block::{BlockRow, PartMoments, WARPS};
use super::reduce::stats::{Cols, Stats};
use super::reduce::warp::{GROUP, Moments};
use super::row_context::RowContext;

/// Number of vec4s (four columns each) that a thread loads before it uses the first of them, in kernels with
/// four warps per row. The number is lower than [`GROUP`], the number for kernels with one warp per row. The
/// reason is that kernels with four warps per row run more threads per SM, with fewer registers per thread.
pub(crate) const GROUP_OF_PART: usize = 2;

impl<T: Elem, A: Access> RowContext<T, A> {
    /// Returns the number of tiles that cover the row.
    #[inline(always)]
    pub fn tiles(&self) -> u32 {
        self.p.cols.div_ceil(TILE)
    }

    /// Computes the row from its operands and writes it to shared memory. For each vec4 (four columns) of the
    /// thread, `fetch` loads the operands and `make` computes the vec4.
    ///
    /// The loop is software-pipelined: while `make` computes one group of vec4s, the loads of the next group
    /// are in flight.
    #[inline(always)]
    pub fn fill<P: Copy>(&self, fetch: impl Fn(u32) -> P, make: impl Fn(u32, P) -> Vec4<T>) {
        let tiles = self.tiles();
        let group = |first: u32| {
            let mut parts = [fetch(first); GROUP];
            for i in 1..GROUP {
                // Past the end of the row, load the last tile again, because the address of this tile is
                // valid. The result of this load is not used.
                parts[i] = fetch((first + i as u32).min(tiles - 1));
            }
            parts
        };
        let (mut first, mut ahead) = (0, group(0));
        while first < tiles {
            let (parts, next) = (ahead, first + GROUP as u32);
            if next < tiles {
                ahead = group(next);
            }
            for i in 0..GROUP {
                let tile = first + i as u32;
                if tile < tiles && self.columns.has::<A>(tile) {
                    self.staged.put(tile, make(tile, parts[i]));
                }
            }
            first = next;
        }
    }

    /// Returns the index of the warp's `nth` tile (128 columns), counted from the first tile of the warp. If
    /// the four warps of a block share the row, a warp has every fourth tile, so the result is `4 * nth`. The
    /// fields `columns` and `staged` then start at the first tile of the warp.
    #[inline(always)]
    pub fn tile(&self, nth: u32) -> u32 {
        if is_block_shared::<A>() { nth * WARPS } else { nth }
    }

    /// Returns the number of tiles (128 columns each) that the warp processes. If the four warps of a block
    /// share the row, each warp processes every fourth tile. Otherwise, the warp processes all tiles of the
    /// row.
    #[inline(always)]
    pub fn warp_tiles(&self) -> u32 {
        if is_block_shared::<A>() { (self.tiles() + WARPS - 1 - self.warp) / WARPS } else { self.tiles() }
    }

    /// Returns the number of tiles (128 columns each) of the warp, rounded down to a multiple of
    /// `in_registers`. The result is 0 if the last tile of the row may be partial.
    #[inline(always)]
    pub fn grouped_tiles(&self, in_registers: usize) -> u32 {
        if is_whole::<A>() { self.warp_tiles() / in_registers as u32 * in_registers as u32 } else { 0 }
    }

    /// Loads the operands of `IN_REGISTERS` tiles (128 columns each) of the warp, from tile `first` on, and
    /// computes the thread's elements of these tiles. `counts` contains the number of the thread's columns in
    /// each tile. A tile with count 0 is not loaded, and its elements are zero.
    #[inline(always)]
    pub fn group<S: Source<T, A>, const IN_REGISTERS: usize>(
        &self,
        source: S,
        first: u32,
        counts: [u32; IN_REGISTERS],
    ) -> [[f32; 4]; IN_REGISTERS] {
        let (mut parts, mut lanes) = ([S::NOTHING; IN_REGISTERS], [[0.0; 4]; IN_REGISTERS]);
        for i in 0..IN_REGISTERS {
            if counts[i] > 0 {
                parts[i] = source.parts(self, self.tile(first + i as u32));
            }
        }
        for i in 0..IN_REGISTERS {
            if counts[i] > 0 {
                lanes[i] = source.make(self, self.tile(first + i as u32), parts[i]).lanes();
            }
        }
        lanes
    }

    /// Returns the number of columns and its reciprocal. Also returns whether the columns fill all tiles (128
    /// columns each) and all vec4s (four columns each).
    #[inline(always)]
    pub fn cols(&self) -> Cols {
        Cols {
            count: self.p.cols as f32,
            inv: self.p.inv_cols,
            even: is_whole::<A>(),
            by_fours: is_vector::<A>() || self.p.cols.is_multiple_of(LEN),
        }
    }

    /// Runs both passes.
    #[inline(always)]
    pub fn run<M: Moments, S: Source<T, A>, K: Sink<T>>(&self, source: S, sink: K) {
        if known!(tiles_in_registers::<A>() > 0) {
            self.run_in_registers::<M, S, K>(source, sink)
        } else {
            self.write(source, self.reduce::<M, S>(source), sink)
        }
    }

    /// Runs the first pass, which reduces the row. The access type `A` (how a thread reads rows) decides
    /// whether rows are staged in shared memory. If so, this method first copies the row there.
    #[inline(always)]
    pub fn reduce<M: Moments, S: Source<T, A>>(&self, source: S) -> Stats {
        if self.has_room() {
            source.stage(self);
        }
        if known!(is_block_shared::<A>()) {
            return self.reduce_part::<M::Part, S>(source);
        }
        let (mut moments, mut first) = (M::EMPTY, 0);
        while first < self.grouped_tiles(GROUP) {
            let counts = [LEN; GROUP];
            moments.push::<A>(self.group(source, first, counts), counts);
            first += GROUP as u32;
        }
        while first < self.tiles() {
            let counts = [0, 1, 2, 3].map(|i: u32| self.columns.count(first + i));
            moments.push::<A>(self.group(source, first, counts), counts);
            first += GROUP as u32;
        }
        moments.finish(self.cols(), self.p.eps)
    }

    /// Runs the second pass: passes every vec4 to `sink`.
    #[inline(always)]
    pub fn write<S: Source<T, A>, K: Sink<T>>(&self, source: S, stats: Stats, sink: K) {
        if known!(is_block_shared::<A>()) {
            self.write_by::<S, K, GROUP_OF_PART>(source, stats, sink)
        } else {
            self.write_by::<S, K, GROUP>(source, stats, sink)
        }
    }

    #[inline(always)]
    fn write_by<S: Source<T, A>, K: Sink<T>, const IN_REGISTERS: usize>(
        &self,
        source: S,
        stats: Stats,
        sink: K,
    ) {
        let again = |tile| self.staged_vec4(tile).unwrap_or_else(|| source.again(tile));
        let mut first = 0;
        while K::GROUPED && first < self.grouped_tiles(IN_REGISTERS) {
            let (mut fetched, mut group) = ([K::EMPTY; IN_REGISTERS], [Vec4::<T>::ZERO; IN_REGISTERS]);
            for i in 0..IN_REGISTERS {
                fetched[i] = sink.fetch(self.tile(first + i as u32));
            }
            for i in 0..IN_REGISTERS {
                group[i] = again(self.tile(first + i as u32));
            }
            for i in 0..IN_REGISTERS {
                sink.put(stats, self.tile(first + i as u32), group[i], fetched[i]);
            }
            first += IN_REGISTERS as u32;
        }
        while first < self.warp_tiles() {
            let tile = self.tile(first);
            sink.put(stats, tile, again(tile), sink.fetch(tile));
            first += 1;
        }
    }
    /// Reduces a row that the four warps of a block share. Each warp reduces its tiles (128 columns each).
    /// Then the block combines the results of its warps.
    #[inline(always)]
    pub fn reduce_part<M: PartMoments, S: Source<T, A>>(&self, source: S) -> Stats {
        let (mut moments, mut first) = (M::EMPTY, 0);
        while first < self.grouped_tiles(GROUP_OF_PART) {
            let lanes = self.group(source, first, [LEN; GROUP_OF_PART]);
            for i in 0..GROUP_OF_PART {
                moments.push(lanes[i]);
            }
            first += GROUP_OF_PART as u32;
        }
        while first < self.warp_tiles() {
            let tile = self.tile(first);
            moments.push(source.make(self, tile, source.parts(self, tile)).lanes());
            first += 1;
        }
        self.finish_part(moments)
    }

    /// Reduces `moments`, the accumulators of the threads, over the block that shares the row.
    #[inline(always)]
    pub fn finish_part<M: PartMoments>(&self, moments: M) -> Stats {
        let row = BlockRow { staged: self.staged, tiles: self.tiles(), warp: self.warp };
        let cols = [self.p.cols as f32, self.p.inv_cols];
        moments.finish::<T, A>(row, Self::memory().1, cols, self.p.eps)
    }
}

/// These methods run both passes over a row that stays in the registers of a warp, or of the four warps of a
/// block.
///
/// All loads of a row are in flight together. Shared memory is used only for the reduction.
impl<T: Elem, A: Access> RowContext<T, A> {
    /// Returns the index of the warp's `nth` tile (128 columns), or `None` if the warp has no such tile.
    #[inline(always)]
    pub fn warp_tile(&self, nth: usize) -> Option<u32> {
        (nth < tiles_in_registers::<A>()).then_some(self.tile(nth as u32))
    }

    /// Runs both passes.
    #[inline(always)]
    pub fn run_in_registers<M: Moments, S: Source<T, A>, K: Sink<T>>(&self, source: S, sink: K) {
        let (mut parts, mut row) = ([S::NOTHING; MAX_IN_REGISTERS], [Vec4::<T>::ZERO; MAX_IN_REGISTERS]);
        for nth in 0..MAX_IN_REGISTERS {
            if let Some(tile) = self.warp_tile(nth) {
                parts[nth] = source.parts(self, tile);
            }
        }
        for nth in 0..MAX_IN_REGISTERS {
            if let Some(tile) = self.warp_tile(nth) {
                row[nth] = source.make(self, tile, parts[nth]);
            }
        }
        // A block reduction has a barrier, at which warps wait. If there are enough registers, load operands
        // such as scale and shift before the barrier. The latency of these loads then overlaps with the wait.
        let (early, mut prefetched) = (is_block_shared::<A>() && K::EARLY, [K::EMPTY; MAX_IN_REGISTERS]);
        for nth in 0..MAX_IN_REGISTERS {
            if let Some(tile) = self.warp_tile(nth).filter(|_| early) {
                prefetched[nth] = sink.fetch(tile);
            }
        }
        let stats = self.reduce_in_registers::<M>(&row);
        for first in (0..MAX_IN_REGISTERS).step_by(K::PREFETCH) {
            for nth in first..first + K::PREFETCH {
                if let Some(tile) = self.warp_tile(nth).filter(|_| !early) {
                    prefetched[nth] = sink.fetch(tile);
                }
            }
            for nth in first..first + K::PREFETCH {
                if let Some(tile) = self.warp_tile(nth) {
                    sink.put(stats, tile, row[nth].opaque_lanes(), prefetched[nth]);
                }
            }
        }
    }

    /// Returns the thread's vec4s (four columns each) of all tiles of the warp. The function `read` loads the
    /// vec4 of one tile.
    #[inline(always)]
    pub fn register_row(&self, read: impl Fn(u32) -> Vec4<T>) -> [Vec4<T>; MAX_IN_REGISTERS] {
        core::array::from_fn(|nth| self.warp_tile(nth).map_or(Vec4::ZERO, &read))
    }

    /// Reduces a row in registers.
    #[inline(always)]
    pub fn reduce_in_registers<M: Moments>(&self, row: &[Vec4<T>; MAX_IN_REGISTERS]) -> Stats {
        if known!(is_block_shared::<A>()) {
            return self.reduce_in_registers_part::<M::Part>(row);
        }
        let mut moments = M::EMPTY;
        for nth in 0..MAX_IN_REGISTERS {
            if self.warp_tile(nth).is_some() {
                moments.push_vec4(nth as u32, row[nth].lanes());
            }
        }
        moments.finish(self.cols(), self.p.eps)
    }

    #[inline(always)]
    fn reduce_in_registers_part<M: PartMoments>(&self, row: &[Vec4<T>; MAX_IN_REGISTERS]) -> Stats {
        const {
            assert!(!(is_unstaged::<A>() && M::READS), "no room for the row that `M` reads");
        }
        let mut moments = M::EMPTY;
        for nth in 0..MAX_IN_REGISTERS {
            if let Some(tile) = self.warp_tile(nth) {
                moments.push_vec4(nth as u32, row[nth].lanes());
                if M::READS {
                    self.staged.put(tile, row[nth]);
                }
            }
        }
        self.finish_part(moments)
    }
}
