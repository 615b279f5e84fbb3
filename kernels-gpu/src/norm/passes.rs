//! The two passes of a norm over its row: reduce, then write.
//!
//! A warp has a row, so nothing waits for another warp; or the four warps of a block share one, which then is done in a
//! fourth of the time. What the row is made of is first copied to shared memory, all of it on its way at once; the passes
//! read it there, in groups of four tiles. Rows that are too long for that are read from global memory in both passes,
//! and short ones stay in registers: see `register_passes`.
use cuda_std::prelude::*;
use cuda_std::vec4::{LEN, SCALAR, TEAM, TILE, WHOLE, held, shared};

use super::io::{Sink, Source};
use super::params::Params;
use super::reduce::block::WARPS;
use super::reduce::warp::{Cols, GROUP, Moments, Stats};

/// Quads that a thread of a row that a block shares works on at once: a block's warps are many, so their registers few.
pub(crate) const GROUP_OF_PART: usize = 2;

/// A warp's work on its row, or on its part of the block's row.
#[derive(Clone, Copy)]
pub(crate) struct Passes<T, const ACCESS: u32> {
    pub at: RowAt,
    pub columns: QuadColumns,
    pub staged: Staged<T>,
    pub p: Params,
    /// The warp's number among those of the row.
    pub warp: u32,
}

impl<T: Elem, const ACCESS: u32> Passes<T, ACCESS> {
    /// The calling warp's, if there is a row for it.
    #[inline(always)]
    pub fn of_warp(p: Params) -> Option<Self> {
        // Rows of four tiles and more are fewer: no memory holds as many.
        let mut team = Team::of_block();
        if shared(ACCESS) {
            // The same, in a way that tells the compiler that it is one row for all threads.
            team.row = u64::from(thread::block_index()[0]);
        }
        let at = if ACCESS >= WHOLE {
            RowAt::of_few(team, p.rows as u32, p.inner)
        } else {
            RowAt::of(team, p.rows, p.inner)
        };
        if !at.exists() {
            return None;
        }
        let columns =
            if shared(ACCESS) { QuadColumns::of_block(at, p.cols) } else { QuadColumns::of_warp(at, p.cols) };
        let warp = if shared(ACCESS) { thread::index()[0] / warp::SIZE } else { 0 };
        Some(Self { at, columns, staged: Self::room(&mut Self::memory().0, p.staged), p, warp })
    }

    /// The launch's shared memory for rows, and before it the room in which the warps of a row meet.
    #[inline(always)]
    pub fn memory() -> (SharedMemory, Shared<f32>) {
        let mut memory = SharedMemory::of_launch();
        let meeting = memory.take(if shared(ACCESS) { Params::SHARING } else { 0 });
        (memory, meeting)
    }

    #[inline(always)]
    fn room(memory: &mut SharedMemory, tiles: u32) -> Staged<T> {
        if shared(ACCESS) { Staged::take_for_block(memory, tiles) } else { Staged::take(memory, tiles) }
    }

    /// Room for another row, if rows wait and the launch made it.
    #[inline(always)]
    pub fn another_row(&self) -> Staged<T> {
        let (mut memory, _) = Self::memory();
        let _rows = Self::room(&mut memory, self.p.staged);
        Self::room(&mut memory, self.p.staged)
    }

    /// Does the row wait in shared memory?
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        ACCESS == WHOLE || ACCESS == TEAM || ACCESS < WHOLE && self.p.staged > 0
    }

    /// Tiles that cover the row.
    #[inline(always)]
    pub fn tiles(&self) -> u32 {
        self.p.cols.div_ceil(TILE)
    }

    /// The quad of `tile` that waits in shared memory, if rows do; zeros past the end.
    #[inline(always)]
    pub fn waiting(&self, tile: u32) -> Option<Quad<T>> {
        if !self.has_room() {
            return None;
        }
        Some(if self.columns.has::<ACCESS>(tile) { self.staged.get(tile) } else { Quad::ZERO })
    }

    /// Fills the waiting row with what `make` makes of what `fetch` reads for each of the thread's quads; the reads of the
    /// next group are on their way while one is worked on.
    #[inline(always)]
    pub fn fill<P: Copy>(&self, fetch: impl Fn(u32) -> P, make: impl Fn(u32, P) -> Quad<T>) {
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
                if tile < tiles && self.columns.has::<ACCESS>(tile) {
                    self.staged.put(tile, make(tile, parts[i]));
                }
            }
            first = next;
        }
    }

    /// The warp's tile of number `nth`, as its thread's columns count them.
    #[inline(always)]
    pub fn tile(&self, nth: u32) -> u32 {
        if shared(ACCESS) { nth * WARPS } else { nth }
    }

    /// Tiles of the row that are the warp's.
    #[inline(always)]
    pub fn own_tiles(&self) -> u32 {
        if shared(ACCESS) { (self.tiles() + WARPS - 1 - self.warp) / WARPS } else { self.tiles() }
    }

    /// Those of them that form groups of `HELD` in which every thread has columns.
    #[inline(always)]
    pub fn grouped_tiles(&self, held: usize) -> u32 {
        if ACCESS >= WHOLE { self.own_tiles() / held as u32 * held as u32 } else { 0 }
    }

    /// The group of the warp's tiles from `first` on, as far as `counts` says that it exists.
    #[inline(always)]
    pub fn group<S: Source<T, ACCESS>, const HELD: usize>(
        &self,
        source: S,
        first: u32,
        counts: [u32; HELD],
    ) -> [[f32; 4]; HELD] {
        let (mut parts, mut lanes) = ([S::NOTHING; HELD], [[0.0; 4]; HELD]);
        for i in 0..HELD {
            if counts[i] > 0 {
                parts[i] = source.parts(self, self.tile(first + i as u32));
            }
        }
        for i in 0..HELD {
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
            even: ACCESS >= WHOLE,
            by_fours: ACCESS != SCALAR || self.p.cols.is_multiple_of(LEN),
        }
    }

    /// Both passes.
    #[inline(always)]
    pub fn run<M: Moments, S: Source<T, ACCESS>, K: Sink<T>>(&self, source: S, sink: K) {
        if held(ACCESS) > 0 {
            self.run_held::<M, S, K>(source, sink)
        } else {
            self.write(source, self.reduce::<M, S>(source), sink)
        }
    }

    /// Reads the row, which then waits, and reduces it.
    #[inline(always)]
    pub fn reduce<M: Moments, S: Source<T, ACCESS>>(&self, source: S) -> Stats {
        if self.has_room() {
            source.stage(self);
        }
        if shared(ACCESS) {
            return self.reduce_part::<M::Part, S>(source);
        }
        let (mut moments, mut first) = (M::EMPTY, 0);
        while first < self.grouped_tiles(GROUP) {
            let counts = [LEN; GROUP];
            moments.push::<ACCESS>(self.group(source, first, counts), counts);
            first += GROUP as u32;
        }
        while first < self.tiles() {
            let counts = [0, 1, 2, 3].map(|i: u32| self.columns.count(first + i));
            moments.push::<ACCESS>(self.group(source, first, counts), counts);
            first += GROUP as u32;
        }
        moments.finish(self.cols(), self.p.eps)
    }

    /// The second pass: every quad goes to `sink`.
    #[inline(always)]
    pub fn write<S: Source<T, ACCESS>, K: Sink<T>>(&self, source: S, stats: Stats, sink: K) {
        if shared(ACCESS) {
            self.write_by::<S, K, GROUP_OF_PART>(source, stats, sink)
        } else {
            self.write_by::<S, K, GROUP>(source, stats, sink)
        }
    }

    #[inline(always)]
    fn write_by<S: Source<T, ACCESS>, K: Sink<T>, const HELD: usize>(
        &self,
        source: S,
        stats: Stats,
        sink: K,
    ) {
        let again = |tile| self.waiting(tile).unwrap_or_else(|| source.again(tile));
        let mut first = 0;
        while K::GROUPED && first < self.grouped_tiles(HELD) {
            let (mut fetched, mut group) = ([K::EMPTY; HELD], [Quad::<T>::ZERO; HELD]);
            for i in 0..HELD {
                fetched[i] = sink.fetch(self.tile(first + i as u32));
            }
            for i in 0..HELD {
                group[i] = again(self.tile(first + i as u32));
            }
            for i in 0..HELD {
                sink.put(stats, self.tile(first + i as u32), group[i], fetched[i]);
            }
            first += HELD as u32;
        }
        while first < self.own_tiles() {
            let tile = self.tile(first);
            sink.put(stats, tile, again(tile), sink.fetch(tile));
            first += 1;
        }
    }
}
