//! The two passes of a norm over its row: reduce, then write.
//!
//! A warp has a row, so nothing waits for another warp. What the row is made of is first copied to shared memory, all of
//! it on its way at once; the passes read it there, in groups of four tiles. Rows that are too long for that are read from
//! global memory in both passes.
use cuda_std::prelude::*;
use cuda_std::quad::{LEN, TILE};

use crate::moments::{Cols, GROUP, Moments, Stats};

/// What a norm over quads needs to know beside its operands: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Rows of the operands.
    pub rows: u64,
    /// Rows in a group of the outer stride; 0: the inner stride is the only one.
    pub inner: u32,
    /// Columns of a row.
    pub cols: u32,
    /// `1 / cols`.
    pub inv_cols: f32,
    /// Added to the variance, or to the mean of squares.
    pub eps: f32,
    /// Tiles of the rows that wait in shared memory: all, or none where there is no room for them.
    pub staged: u32,
    /// What the operands beside the rows are: one of [`Params::SAME`], [`Params::SINGLE`], [`Params::ANY`].
    pub form: u32,
    /// Round to the element type after each step, as a chain of separate operators does, not once at the end. 0 or 1.
    pub round_each: u32,
    /// Are all operands `Rows::is_quads`? 0 or 1.
    pub vector: u32,
    /// Are those that are staged `Rows::is_vector` too? 0 or 1.
    pub packs: u32,
}

impl Params {
    /// Those that are there are of the rows' type; no table, no weight or bias beside a modulation.
    pub const SAME: u32 = 0;
    /// As [`Params::SAME`], in f32 beside rows of 16 bits.
    pub const SINGLE: u32 = 1;
    /// Anything else: looked up for each quad.
    pub const ANY: u32 = 2;
}

/// Where the rows to be normalised come from.
pub(crate) trait Source<T: Elem, const VECTOR: bool>: Copy {
    /// What there is of a quad before anything is done with it.
    type Parts: Copy;
    /// Nothing yet.
    const EMPTY: Self::Parts;
    /// The parts of a quad, each of which `get` takes from one of the rows that are staged.
    fn parts(&self, get: impl Fn(u32, &QuadRow<T, VECTOR>) -> Quad<T>) -> Self::Parts;
    /// The quad that they make, for the first time.
    fn take(&self, tile: u32, parts: Self::Parts) -> Quad<T>;
    /// The same quad again, where it was not kept.
    fn again(&self, tile: u32) -> Quad<T>;
}

/// A row as it is, staged as row 0.
impl<T: Elem, const VECTOR: bool> Source<T, VECTOR> for QuadRow<T, VECTOR> {
    type Parts = Quad<T>;
    const EMPTY: Quad<T> = Quad::ZERO;
    #[inline(always)]
    fn parts(&self, get: impl Fn(u32, &QuadRow<T, VECTOR>) -> Quad<T>) -> Quad<T> {
        get(0, self)
    }
    #[inline(always)]
    fn take(&self, _: u32, quad: Quad<T>) -> Quad<T> {
        quad
    }
    #[inline(always)]
    fn again(&self, tile: u32) -> Quad<T> {
        self.get(tile)
    }
}

/// What becomes of the quads in the second pass.
pub(crate) trait Sink<T: Elem> {
    /// Are there registers to read beside a whole group before anything is done with it?
    const GROUPED: bool;
    /// What is read beside a quad.
    type Fetched: Copy;
    /// Nothing yet.
    const EMPTY: Self::Fetched;
    /// Reads the thread's part of `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// Writes what the quad makes with it.
    fn put(&self, tile: u32, quad: Quad<T>, fetched: Self::Fetched);
}

/// A warp's work on its row.
#[derive(Clone, Copy)]
pub(crate) struct Passes<T, const VECTOR: bool> {
    pub at: RowAt,
    pub columns: QuadColumns,
    staged: Staged<T>,
    p: Params,
}

impl<T: Elem, const VECTOR: bool> Passes<T, VECTOR> {
    /// The calling warp's, if there is a row for it; `rows` rows are staged.
    #[inline(always)]
    pub fn of_warp(p: Params, rows: u32) -> Option<Self> {
        let at = RowAt::of(Team::of_block(), p.rows, p.inner);
        if !at.exists() {
            return None;
        }
        let columns = QuadColumns::of_warp(at, p.cols);
        Some(Self { at, columns, staged: Staged::take(&mut SharedMemory::of_launch(), rows, p.staged), p })
    }

    /// Begins to copy a row to where it waits as row `number`, if there is room.
    #[inline(always)]
    pub fn stage(&self, number: u32, row: &QuadRow<T, VECTOR>) {
        if self.p.staged > 0 {
            row.stage(&self.staged, number, self.p.packs != 0);
        }
    }

    /// Waits for what was staged.
    #[inline(always)]
    pub fn wait(&self) {
        self.staged.wait();
    }

    /// Tiles that cover the row.
    #[inline(always)]
    fn tiles(&self) -> u32 {
        self.p.cols.div_ceil(TILE)
    }

    /// The quad of `tile` of staged row `number`; zeros past the end.
    #[inline(always)]
    fn waiting(&self, number: u32, tile: u32) -> Quad<T> {
        if self.columns.has(tile) { self.staged.get(number, tile) } else { Quad::ZERO }
    }

    /// Hands every group of `source`'s quads to `each`, with the number of its first tile.
    #[inline(always)]
    pub fn visit<S: Source<T, VECTOR>>(&self, source: S, mut each: impl FnMut(u32, [Quad<T>; GROUP])) {
        let tiles = self.tiles();
        let mut first = 0;
        while first < tiles {
            let mut parts = [S::EMPTY; GROUP];
            if self.p.staged > 0 {
                for i in 0..GROUP {
                    parts[i] = source.parts(|number, _| self.waiting(number, first + i as u32));
                }
            } else {
                for i in 0..GROUP {
                    parts[i] = source.parts(|_, row| row.get(first + i as u32));
                }
            }
            let mut group = [Quad::<T>::ZERO; GROUP];
            for i in 0..GROUP {
                group[i] = source.take(first + i as u32, parts[i]);
            }
            each(first, group);
            first += GROUP as u32;
        }
    }

    /// Reduces the rows of `source`, and keeps them as row 0 if they are not what waits there.
    #[inline(always)]
    pub fn reduce<M: Moments>(&self, source: impl Source<T, VECTOR>, keep: bool) -> Stats {
        let mut moments = M::EMPTY;
        self.visit(source, |first, group| {
            let (mut lanes, mut counts) = ([[0.0; 4]; GROUP], [0; GROUP]);
            for i in 0..GROUP {
                let tile = first + i as u32;
                if keep && self.p.staged > 0 && self.columns.has(tile) {
                    self.staged.put(0, tile, group[i]);
                }
                lanes[i] = group[i].lanes();
                // With vectors there is all of a quad or nothing.
                counts[i] = match VECTOR {
                    true => {
                        if self.columns.has(tile) {
                            LEN
                        } else {
                            0
                        }
                    }
                    false => self.columns.count(tile),
                };
            }
            moments.push::<VECTOR>(lanes, counts);
        });
        let even = VECTOR && self.p.cols.is_multiple_of(TILE * GROUP as u32);
        moments.finish(Cols { count: self.p.cols as f32, inv: self.p.inv_cols, even }, self.p.eps)
    }

    /// The second pass: every quad goes to `sink`.
    #[inline(always)]
    pub fn write<K: Sink<T>>(&self, source: impl Source<T, VECTOR>, sink: K) {
        let tiles = self.tiles();
        let mut first = 0;
        while K::GROUPED && first < tiles {
            let (mut fetched, mut group) = ([K::EMPTY; GROUP], [Quad::<T>::ZERO; GROUP]);
            for i in 0..GROUP {
                fetched[i] = sink.fetch(first + i as u32);
            }
            if self.p.staged > 0 {
                for i in 0..GROUP {
                    group[i] = self.waiting(0, first + i as u32);
                }
            } else {
                for i in 0..GROUP {
                    group[i] = source.again(first + i as u32);
                }
            }
            for i in 0..GROUP {
                sink.put(first + i as u32, group[i], fetched[i]);
            }
            first += GROUP as u32;
        }
        while !K::GROUPED && first < tiles {
            let quad = if self.p.staged > 0 { self.waiting(0, first) } else { source.again(first) };
            sink.put(first, quad, sink.fetch(first));
            first += 1;
        }
    }
}
