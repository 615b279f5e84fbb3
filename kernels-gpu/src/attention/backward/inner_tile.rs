//! The side that a block goes over, tile by tile.
use cuda_std::mma::{Chunk, MatrixElem};
use cuda_std::prelude::*;

use super::delta::statistics;
use super::params::BackwardParams;
use crate::attention::mma::tile::{Copier, Tile};
use crate::attention::mma::tile_coords::TileCoords;
use crate::layout::heads::Heads;

/// What copies the two tensors of a side: of keys and values if `keys`, else of queries and the result's
/// gradient, those of the head that is number `member` of those that share a key's.
#[inline(always)]
pub(super) fn operands<T: MatrixElem, const DIM16: usize>(
    p: &BackwardParams,
    coords: &TileCoords,
    keys: bool,
    member: u32,
    threads: u32,
) -> [Copier<T, DIM16>; 2] {
    let (f, coords) = (&p.forward, coords.with_member(member));
    let of_query = |heads: &Heads| (coords.query(heads), heads.token_stride, coords.queries);
    let of_key = |heads: &Heads| (coords.key(heads, f.group), heads.token_stride, coords.keys);
    let pair = if keys { [of_key(&f.k), of_key(&f.v)] } else { [of_query(&f.q), of_query(&p.dout)] };
    pair.map(|(head, stride, rows)| Copier::of(head, stride, [rows, f.dim], threads))
}

/// A step: a tile of the other side.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// Counted from 0.
    pub number: u32,
    /// The head among those that share a key's.
    pub member: u32,
    /// The tile among that head's.
    tile: u32,
}

/// Two buffers of a tile of each tensor, and, where they are of queries, of these queries' numbers. `KEYS`:
/// the block's own rows are keys, so that these are queries, of one head after the other.
pub(super) struct InnerTile<
    'p,
    T,
    const DIM16: usize,
    const WARPS: u32,
    const KEYS: bool,
    const GENERAL: bool,
> {
    pub p: &'p BackwardParams,
    pub coords: TileCoords,
    /// The first tile, and how many there are of a head.
    pub begin: u32,
    pub tiles: u32,
    /// Rows of a tile.
    pub rows: u32,
    buffers: [Tile<T, DIM16>; 2],
    /// Those of two queries together: `lse` and `delta` of one, then of the other.
    numbers: Shared<Chunk>,
}

impl<'p, T: MatrixElem, const DIM16: usize, const WARPS: u32, const KEYS: bool, const GENERAL: bool>
    InnerTile<'p, T, DIM16, WARPS, KEYS, GENERAL>
{
    /// Tiles of `rows` rows from number `begin` on, `tiles` of them.
    #[inline(always)]
    pub fn take(
        memory: &mut SharedMemory,
        p: &'p BackwardParams,
        coords: TileCoords,
        [begin, tiles, rows]: [u32; 3],
    ) -> Self {
        let buffers = [Tile::take(memory, 2 * rows), Tile::take(memory, 2 * rows)];
        Self { p, coords, begin, tiles, rows, buffers, numbers: memory.take(rows) }
    }

    /// Over all heads that share the block's rows.
    #[inline(always)]
    pub fn steps(&self) -> u32 {
        self.tiles * if KEYS { self.p.forward.group } else { 1 }
    }

    /// The first step.
    #[inline(always)]
    pub fn first(&self) -> Step {
        Step { number: 0, member: 0, tile: self.begin }
    }

    /// The step after another: the next tile, or the first one of the next head.
    #[inline(always)]
    pub fn after(&self, step: Step) -> Step {
        let number = step.number + 1;
        if step.tile + 1 < self.begin + self.tiles {
            return Step { number, tile: step.tile + 1, ..step };
        }
        Step { number, member: step.member + 1, tile: self.begin }
    }

    /// The first row of a step's tile.
    #[inline(always)]
    pub fn row(&self, step: Step) -> u32 {
        step.tile * self.rows
    }

    /// The tiles of a step.
    #[inline(always)]
    pub fn tiles_of(&self, step: Step) -> [Tile<T, DIM16>; 2] {
        let [first, second] = &self.buffers;
        [first, second].map(|tile| tile.at_row(step.number % 2 * self.rows))
    }

    /// Begins to copy a step's tile of one tensor, the first or the second, if there is such a step.
    ///
    /// # Safety
    /// The tensors are readable; the step two before was worked off by all threads.
    #[inline(always)]
    pub unsafe fn copy(&self, step: Step, tensor: usize) {
        if step.number >= self.steps() {
            return;
        }
        let copiers = operands(self.p, &self.coords, !KEYS, step.member, WARPS * warp::SIZE);
        let vector = !GENERAL || self.p.vector != 0;
        // SAFETY: as the caller promises.
        unsafe { copiers[tensor].copy(&self.tiles_of(step)[tensor], self.row(step), self.rows, vector) };
    }

    /// Reads the numbers of a step's queries, one of each for a thread; zeros where there is none.
    ///
    /// # Safety
    /// The tensors are readable.
    #[inline(always)]
    pub unsafe fn read(&self, step: Step) -> [f32; 2] {
        let query = self.row(step) + thread::index()[0];
        let there = step.number < self.steps() && query < self.coords.queries;
        if !KEYS || thread::index()[0] >= self.rows || !there {
            return [0.0; 2];
        }
        // SAFETY: it is one of the sequence.
        unsafe { statistics(self.p, &self.coords.with_member(step.member), query) }
    }

    /// Keeps the numbers that [`InnerTile::read`] gave.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn store(&self, step: Step, [lse, delta]: [f32; 2]) {
        if KEYS && thread::index()[0] < self.rows {
            let to = 2 * (step.number % 2 * self.rows + thread::index()[0]);
            let numbers = self.numbers.cast::<f32>();
            // SAFETY: the thread's own places, of the buffer that is not in use.
            unsafe {
                numbers.set(to, lse);
                numbers.set(to + 1, delta);
            }
        }
    }

    /// `lse` and `delta` of the lane's two queries in the columns of a matrix, to the left or right in the 16
    /// of number `pair`.
    ///
    /// # Safety
    /// A barrier stands between this and [`InnerTile::store`].
    #[inline(always)]
    pub unsafe fn numbers(&self, step: Step, pair: usize, operands: usize) -> [[f32; 2]; 2] {
        let two = 8 * pair as u32 + 4 * operands as u32 + warp::lane() % 4;
        let at = step.number % 2 * self.rows / 2 + two;
        // SAFETY: as the caller promises.
        let Chunk([a, b, c, d]) = unsafe { self.numbers.get(at) };
        [[a, b], [c, d]].map(|numbers| numbers.map(f32::from_bits))
    }
}
