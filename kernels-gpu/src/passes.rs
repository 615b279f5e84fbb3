//! The two passes of a norm over its row: reduce, then write. Between them the row waits in shared memory, as far as
//! the launch has room for it; the rest is read again.
//!
//! A warp has a row, so nothing waits for another warp. The row is taken in groups of four tiles: the loads of the next
//! group are on their way while one is worked on, and whole groups ask no thread whether it has columns there.
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
    /// Tiles of a row that shared memory has room for, in whole groups.
    pub staged: u32,
    /// What the operands beside the rows are: one of [`Params::SAME`], [`Params::SINGLE`], [`Params::ANY`].
    pub form: u32,
    /// Round to the element type after each step, as a chain of separate operators does, not once at the end. 0 or 1.
    pub round_each: u32,
    /// Are all operands `Rows::is_quads`? 0 or 1.
    pub vector: u32,
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
pub(crate) trait Source<T: Elem>: Copy {
    /// What is read of a quad, before anything is done with it.
    type Fetched: Copy;
    /// Nothing yet.
    const EMPTY: Self::Fetched;
    /// Reads the thread's part of `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// The quad that it makes, for the first time.
    fn take(&self, tile: u32, fetched: Self::Fetched) -> Quad<T>;
    /// The same quad again.
    fn again(&self, tile: u32) -> Quad<T>;
}

impl<T: Elem, const VECTOR: bool> Source<T> for QuadRow<T, VECTOR> {
    type Fetched = Quad<T>;
    const EMPTY: Quad<T> = Quad::ZERO;
    #[inline(always)]
    fn fetch(&self, tile: u32) -> Quad<T> {
        self.get(tile)
    }
    #[inline(always)]
    fn take(&self, _: u32, fetched: Quad<T>) -> Quad<T> {
        fetched
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
    /// The calling warp's, if there is a row for it.
    #[inline(always)]
    pub fn of_warp(p: Params) -> Option<Self> {
        let team = Team::of_block();
        let at = RowAt::of(team, p.rows, p.inner);
        if !at.exists() {
            return None;
        }
        let columns = QuadColumns::of_warp(at, p.cols);
        Some(Self { at, columns, staged: Staged::take(&mut SharedMemory::of_launch(), p.staged), p })
    }

    /// Tiles that cover the row.
    #[inline(always)]
    fn tiles(&self) -> u32 {
        self.p.cols.div_ceil(TILE)
    }

    /// Hands every group of `source`'s quads to `each`, with the number of its first tile.
    #[inline(always)]
    pub fn visit<S: Source<T>>(&self, source: S, mut each: impl FnMut(u32, [Quad<T>; GROUP])) {
        let tiles = self.tiles();
        let (mut first, mut fetched) = (0, fetch_group(source, 0));
        while first < tiles {
            let next = first + GROUP as u32;
            let coming = if next < tiles { fetch_group(source, next) } else { [S::EMPTY; GROUP] };
            let mut group = [Quad::<T>::ZERO; GROUP];
            for i in 0..GROUP {
                group[i] = source.take(first + i as u32, fetched[i]);
            }
            each(first, group);
            (first, fetched) = (next, coming);
        }
    }

    /// Reads the row, keeps what there is room for, and reduces it.
    #[inline(always)]
    pub fn reduce<M: Moments>(&self, source: impl Source<T>) -> Stats {
        let mut moments = M::EMPTY;
        self.visit(source, |first, group| {
            if first < self.p.staged {
                for i in 0..GROUP {
                    self.staged.put(first + i as u32, group[i]);
                }
            }
            let (mut lanes, mut counts) = ([[0.0; 4]; GROUP], [0; GROUP]);
            for i in 0..GROUP {
                let tile = first + i as u32;
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

    /// The quad of `tile`, if there was room for it.
    #[inline(always)]
    pub fn kept(&self, tile: u32) -> Option<Quad<T>> {
        if tile < self.p.staged { Some(self.staged.get(tile)) } else { None }
    }

    /// The second pass: every quad goes to `sink`.
    #[inline(always)]
    pub fn write<K: Sink<T>>(&self, source: impl Source<T>, sink: K) {
        let tiles = self.tiles();
        let mut first = 0;
        while K::GROUPED && first < tiles {
            let (mut fetched, mut group) = ([K::EMPTY; GROUP], [Quad::<T>::ZERO; GROUP]);
            for i in 0..GROUP {
                fetched[i] = sink.fetch(first + i as u32);
            }
            if first < self.p.staged {
                for i in 0..GROUP {
                    group[i] = self.staged.get(first + i as u32);
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
            let quad = self.kept(first).unwrap_or_else(|| source.again(first));
            sink.put(first, quad, sink.fetch(first));
            first += 1;
        }
    }
}

#[inline(always)]
fn fetch_group<T: Elem, S: Source<T>>(source: S, first: u32) -> [S::Fetched; GROUP] {
    let mut fetched = [S::EMPTY; GROUP];
    for i in 0..GROUP {
        fetched[i] = source.fetch(first + i as u32);
    }
    fetched
}
