//! The two passes of a norm over its row: reduce, then write.
//!
//! A warp has a row, so nothing waits for another warp; or the four warps of a block share one, which then is
//! done in a fourth of the time. What the row is made of is first copied to shared memory, all of it on its
//! way at once; the passes read it there, in groups of four tiles. Rows that are too long for that are read
//! from global memory in both passes, and short ones stay in registers.
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

/// Quads that a thread of a row that a block shares works on at once: a block's warps are many, so their
/// registers few.
pub(crate) const GROUP_OF_PART: usize = 2;

impl<T: Elem, A: Access> RowContext<T, A> {
    /// Tiles that cover the row.
    #[inline(always)]
    pub fn tiles(&self) -> u32 {
        self.p.cols.div_ceil(TILE)
    }

    /// Fills the waiting row with what `make` makes of what `fetch` reads for each of the thread's quads; the
    /// reads of the next group are on their way while one is worked on.
    #[inline(always)]
    pub fn fill<P: Copy>(&self, fetch: impl Fn(u32) -> P, make: impl Fn(u32, P) -> Vec4<T>) {
        let tiles = self.tiles();
        let group = |first: u32| {
            let mut parts = [fetch(first); GROUP];
            for i in 1..GROUP {
                // Past the end the last tile again, which nobody makes anything of.
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

    /// The warp's tile of number `nth`, as its thread's columns count them.
    #[inline(always)]
    pub fn tile(&self, nth: u32) -> u32 {
        if is_block_shared::<A>() { nth * WARPS } else { nth }
    }

    /// Tiles of the row that are the warp's.
    #[inline(always)]
    pub fn warp_tiles(&self) -> u32 {
        if is_block_shared::<A>() { (self.tiles() + WARPS - 1 - self.warp) / WARPS } else { self.tiles() }
    }

    /// Those of them that form groups of `IN_REGISTERS` in which every thread has columns.
    #[inline(always)]
    pub fn grouped_tiles(&self, in_registers: usize) -> u32 {
        if is_whole::<A>() { self.warp_tiles() / in_registers as u32 * in_registers as u32 } else { 0 }
    }

    /// The group of the warp's tiles from `first` on, as far as `counts` says that it exists.
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

    /// What a row is divided by.
    #[inline(always)]
    pub fn cols(&self) -> Cols {
        Cols {
            count: self.p.cols as f32,
            inv: self.p.inv_cols,
            even: is_whole::<A>(),
            by_fours: is_vector::<A>() || self.p.cols.is_multiple_of(LEN),
        }
    }

    /// Both passes.
    #[inline(always)]
    pub fn run<M: Moments, S: Source<T, A>, K: Sink<T>>(&self, source: S, sink: K) {
        if tiles_in_registers::<A>() > 0 {
            self.run_in_registers::<M, S, K>(source, sink)
        } else {
            self.write(source, self.reduce::<M, S>(source), sink)
        }
    }

    /// Reads the row, which then waits, and reduces it.
    #[inline(always)]
    pub fn reduce<M: Moments, S: Source<T, A>>(&self, source: S) -> Stats {
        if self.has_room() {
            source.stage(self);
        }
        if is_block_shared::<A>() {
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

    /// The second pass: every quad goes to `sink`.
    #[inline(always)]
    pub fn write<S: Source<T, A>, K: Sink<T>>(&self, source: S, stats: Stats, sink: K) {
        if is_block_shared::<A>() {
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
    /// Reduces the warp's part of the row, and meets the others.
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

    /// Reduces over the warps of a row.
    #[inline(always)]
    pub fn finish_part<M: PartMoments>(&self, moments: M) -> Stats {
        let row = BlockRow { staged: self.staged, tiles: self.tiles(), warp: self.warp };
        let cols = [self.p.cols as f32, self.p.inv_cols];
        moments.finish::<T, A>(row, Self::memory().1, cols, self.p.eps)
    }
}

/// Both passes over a row that stays in registers, those of its warp or of the four warps of a block: all of
/// it is on its way at once, and nothing waits in shared memory but what warps exchange.
impl<T: Elem, A: Access> RowContext<T, A> {
    /// The warp's tile of number `nth`, if the row has it.
    #[inline(always)]
    pub fn warp_tile(&self, nth: usize) -> Option<u32> {
        (nth < tiles_in_registers::<A>()).then_some(self.tile(nth as u32))
    }

    /// Both passes.
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
        // Warps wait for each other: what they read next is on its way meanwhile, if there are registers for
        // it.
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

    /// What `read` says of the warp's tiles.
    #[inline(always)]
    pub fn register_row(&self, read: impl Fn(u32) -> Vec4<T>) -> [Vec4<T>; MAX_IN_REGISTERS] {
        core::array::from_fn(|nth| self.warp_tile(nth).map_or(Vec4::ZERO, &read))
    }

    /// Reduces a row that is held.
    #[inline(always)]
    pub fn reduce_in_registers<M: Moments>(&self, row: &[Vec4<T>; MAX_IN_REGISTERS]) -> Stats {
        if is_block_shared::<A>() {
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
