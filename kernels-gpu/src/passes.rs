//! The two passes of a norm over its row: reduce, then write. Between them the row waits in shared memory, as far as
//! the launch has room for it; the rest is read again.
use cuda_std::prelude::*;
use cuda_std::quad::LEN;

use crate::moments::{Cols, Moments, Stats};

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
    /// Tiles of a row that shared memory has room for.
    pub staged: u32,
    /// Round to the element type after each step, as a chain of separate operators does, not once at the end. 0 or 1.
    pub round_each: u32,
    /// Are all operands `Rows::is_quads`? 0 or 1.
    pub vector: u32,
}

/// Where the rows to be normalised come from.
pub(crate) trait Source<T: Elem>: Copy {
    /// What is read of a quad, before anything is done with it.
    type Fetched: Copy;
    /// How many times as much that is as the quad itself.
    const WIDTH: usize;
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
    const WIDTH: usize = 1;
    const EMPTY: Quad<T> = Quad::ZERO;
    #[inline(always)]
    fn fetch(&self, tile: u32) -> Quad<T> {
        self.load(tile, Load::ReadOnly)
    }
    #[inline(always)]
    fn take(&self, _: u32, fetched: Quad<T>) -> Quad<T> {
        fetched
    }
    #[inline(always)]
    fn again(&self, tile: u32) -> Quad<T> {
        self.load(tile, Load::ReadOnly)
    }
}

/// A team's work on its row.
#[derive(Clone, Copy)]
pub(crate) struct Passes<T, const VECTOR: bool> {
    pub team: Team,
    pub at: RowAt,
    pub columns: QuadColumns,
    staged: Staged<T>,
    p: Params,
}

/// The most quads of a thread that are in flight together.
const MOST: usize = 8;

impl<T: Elem, const VECTOR: bool> Passes<T, VECTOR> {
    /// The calling thread's, with its part of `memory`.
    #[inline(always)]
    pub fn of_block(memory: &mut SharedMemory, p: Params) -> Self {
        let team = Team::of_block();
        let at = RowAt::of(team, p.rows, p.inner);
        let columns = QuadColumns::of(team, at, p.cols);
        Self { team, at, columns, staged: Staged::take(memory, p.staged), p }
    }

    /// Tiles that cover the row.
    #[inline(always)]
    pub fn tiles(&self) -> u32 {
        QuadColumns::tiles(self.team, self.p.cols)
    }

    /// Hands every quad of the row to `each`, those of up to `quads` tiles read together.
    #[inline(always)]
    pub fn visit<S: Source<T>>(&self, source: S, quads: usize, mut each: impl FnMut(u32, Quad<T>)) {
        // Without vectors a quad is many accesses, and one is enough.
        let together = if VECTOR { quads / S::WIDTH } else { 1 };
        let tiles = self.tiles();
        let mut first = 0;
        while first < tiles {
            let mut fetched = [S::EMPTY; MOST];
            for i in 0..MOST {
                if i < together {
                    fetched[i] = source.fetch(first + i as u32);
                }
            }
            for i in 0..MOST {
                let tile = first + i as u32;
                if i < together && self.columns.has(tile) {
                    each(tile, source.take(tile, fetched[i]));
                }
            }
            first += together as u32;
        }
    }

    /// Reads the row, keeps what there is room for, and reduces it.
    #[inline(always)]
    pub fn reduce<M: Moments>(&self, source: impl Source<T>, memory: &mut SharedMemory) -> Stats {
        let mut moments = M::EMPTY;
        self.visit(source, M::IN_FLIGHT, |tile, quad| {
            self.keep(tile, quad);
            moments.push(quad.lanes(), if VECTOR { LEN } else { self.columns.count(tile) });
        });
        self.finish(moments, memory)
    }

    /// Reduces over the team what its threads have seen.
    #[inline(always)]
    pub fn finish<M: Moments>(&self, moments: M, memory: &mut SharedMemory) -> Stats {
        let cols = Cols { count: self.p.cols as f32, inv: self.p.inv_cols };
        moments.finish(self.team, memory, cols, self.p.eps)
    }

    /// Keeps the quad of `tile` for the next pass, if there is room for it.
    #[inline(always)]
    pub fn keep(&self, tile: u32, quad: Quad<T>) {
        if tile < self.p.staged {
            self.staged.put(tile, quad);
        }
    }

    /// The quad of `tile` in the second pass.
    #[inline(always)]
    pub fn again(&self, tile: u32, source: impl Source<T>) -> Quad<T> {
        if tile < self.p.staged { self.staged.get(tile) } else { source.again(tile) }
    }

    /// The tiles in which the thread has columns.
    #[inline(always)]
    pub fn own_tiles(&self) -> impl Iterator<Item = u32> {
        let columns = self.columns;
        (0..self.tiles()).take_while(move |&tile| columns.has(tile))
    }
}
