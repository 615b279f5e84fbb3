//! The two passes of a norm over its row: reduce, then write.
//!
//! A warp has a row, so nothing waits for another warp. What the row is made of is first copied to shared memory, all of
//! it on its way at once; the passes read it there, in groups of four tiles. Rows that are too long for that are read from
//! global memory in both passes.
use cuda_std::prelude::*;
use cuda_std::quad::{LEN, QUADS, SCALAR, TILE, WHOLE};

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
    /// How all operands may be read: [`SCALAR`], [`QUADS`] or [`WHOLE`]; with the last the rows are staged.
    pub access: u32,
    /// Are the staged rows `Rows::is_vector`? 0 or 1.
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
pub(crate) trait Source<T: Elem, const ACCESS: u32>: Copy {
    /// Brings the warp's row to where it waits.
    fn stage(&self, passes: &Passes<T, ACCESS>);
    /// The thread's quad of `tile` for the first time, of a row that is too long to wait.
    fn first(&self, tile: u32) -> Quad<T>;
    /// The same quad again.
    fn again(&self, tile: u32) -> Quad<T>;
}

/// A row as it is.
impl<T: Elem, const ACCESS: u32> Source<T, ACCESS> for QuadRow<T, ACCESS> {
    #[inline(always)]
    fn stage(&self, passes: &Passes<T, ACCESS>) {
        self.copy_to(&passes.staged, passes.p.packs != 0);
        passes.staged.wait();
    }
    #[inline(always)]
    fn first(&self, tile: u32) -> Quad<T> {
        self.get(tile)
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
pub(crate) struct Passes<T, const ACCESS: u32> {
    pub at: RowAt,
    pub columns: QuadColumns,
    pub staged: Staged<T>,
    pub p: Params,
}

impl<T: Elem, const ACCESS: u32> Passes<T, ACCESS> {
    /// The calling warp's, if there is a row for it.
    #[inline(always)]
    pub fn of_warp(p: Params) -> Option<Self> {
        let at = RowAt::of(Team::of_block(), p.rows, p.inner);
        if !at.exists() {
            return None;
        }
        let columns = QuadColumns::of_warp(at, p.cols);
        Some(Self { at, columns, staged: Staged::take(&mut SharedMemory::of_launch(), p.staged), p })
    }

    /// Does the row wait in shared memory?
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        ACCESS == WHOLE || self.p.staged > 0
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
        let group = |first: u32| {
            let mut parts = [fetch(first); GROUP];
            for i in 1..GROUP {
                parts[i] = fetch(first + i as u32);
            }
            parts
        };
        let tiles = self.tiles();
        let (mut first, mut ahead) = (0, group(0));
        while first < tiles {
            let (parts, next) = (ahead, first + GROUP as u32);
            if next < tiles {
                ahead = group(next);
            }
            for i in 0..GROUP {
                let tile = first + i as u32;
                if self.columns.has::<ACCESS>(tile) {
                    self.staged.put(tile, make(tile, parts[i]));
                }
            }
            first = next;
        }
    }

    /// Reads the row, which then waits, and reduces it.
    #[inline(always)]
    pub fn reduce<M: Moments, S: Source<T, ACCESS>>(&self, source: S) -> Stats {
        if self.has_room() {
            source.stage(self);
        }
        let (tiles, mut moments) = (self.tiles(), M::EMPTY);
        let mut first = 0;
        while first < tiles {
            let (mut lanes, mut counts) = ([[0.0; 4]; GROUP], [LEN; GROUP]);
            for i in 0..GROUP {
                let tile = first + i as u32;
                let quad = self.waiting(tile).unwrap_or_else(|| source.first(tile));
                lanes[i] = quad.lanes();
                if ACCESS == QUADS {
                    counts[i] = if self.columns.has::<ACCESS>(tile) { LEN } else { 0 };
                } else if ACCESS == SCALAR {
                    counts[i] = self.columns.count(tile);
                }
            }
            moments.push::<ACCESS>(lanes, counts);
            first += GROUP as u32;
        }
        let cols = Cols { count: self.p.cols as f32, inv: self.p.inv_cols, even: ACCESS == WHOLE };
        moments.finish(cols, self.p.eps)
    }

    /// The second pass: every quad goes to `sink`.
    #[inline(always)]
    pub fn write<S: Source<T, ACCESS>, K: Sink<T>>(&self, source: S, sink: K) {
        let again = |tile| self.waiting(tile).unwrap_or_else(|| source.again(tile));
        let tiles = self.tiles();
        let mut first = 0;
        while K::GROUPED && first < tiles {
            let (mut fetched, mut group) = ([K::EMPTY; GROUP], [Quad::<T>::ZERO; GROUP]);
            for i in 0..GROUP {
                fetched[i] = sink.fetch(first + i as u32);
            }
            for i in 0..GROUP {
                group[i] = again(first + i as u32);
            }
            for i in 0..GROUP {
                sink.put(first + i as u32, group[i], fetched[i]);
            }
            first += GROUP as u32;
        }
        while !K::GROUPED && first < tiles {
            sink.put(first, again(first), sink.fetch(first));
            first += 1;
        }
    }
}

/// Runs `$body` with the constant `$access` for the launch's way of reading rows.
#[allow(unused_macros, reason = "units without an op over quads")]
macro_rules! with_access {
    ($p:expr, $access:ident => $body:expr) => {
        match $p.access {
            cuda_std::quad::WHOLE => {
                const $access: u32 = cuda_std::quad::WHOLE;
                $body
            }
            cuda_std::quad::QUADS => {
                const $access: u32 = cuda_std::quad::QUADS;
                $body
            }
            _ => {
                const $access: u32 = cuda_std::quad::SCALAR;
                $body
            }
        }
    };
}
#[allow(unused_imports, reason = "units without an op over quads")]
pub(crate) use with_access;
