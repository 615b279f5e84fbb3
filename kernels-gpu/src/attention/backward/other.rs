//! The side that a block goes over, tile by tile.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::BackwardParams;
use super::delta::statistics;
use crate::attention::place::Place;
use crate::attention::tile::{Copier, Tile};
use crate::heads::Heads;

/// What copies the two tensors of a side: of keys and values if `keys`, else of queries and the result's gradient, those of
/// the head that is number `member` of those that share a key's.
#[inline(always)]
pub(super) fn side<T: MatrixElem, const DIM16: usize>(
    p: &BackwardParams,
    place: &Place,
    keys: bool,
    member: u32,
) -> [Copier<T, DIM16>; 2] {
    let (f, place) = (&p.forward, place.with_member(member));
    let of_query = |heads: &Heads| (place.query(heads), heads.token_stride, place.queries);
    let of_key = |heads: &Heads| (place.key(heads, f.group), heads.token_stride, place.keys);
    let pair = if keys { [of_key(&f.k), of_key(&f.v)] } else { [of_query(&f.q), of_query(&p.dout)] };
    pair.map(|(head, stride, rows)| Copier::of(head, stride, rows, f.dim))
}

/// Two buffers of a tile of each tensor, and, where they are of queries, of these queries' numbers. `KEYS`: the block's own
/// rows are keys, so that these are queries, of one head after the other.
pub(super) struct Other<'p, T, const DIM16: usize, const KEYS: bool> {
    pub p: &'p BackwardParams,
    pub place: Place,
    /// The first tile, and how many there are of a head.
    pub begin: u32,
    pub tiles: u32,
    /// Rows of a tile.
    pub rows: u32,
    buffers: [Tile<T, DIM16>; 2],
    numbers: Shared<f32>,
}

impl<'p, T: MatrixElem, const DIM16: usize, const KEYS: bool> Other<'p, T, DIM16, KEYS> {
    /// Tiles of `rows` rows from number `begin` on, `tiles` of them.
    #[inline(always)]
    pub fn take(
        memory: &mut SharedMemory,
        p: &'p BackwardParams,
        place: Place,
        [begin, tiles, rows]: [u32; 3],
    ) -> Self {
        let buffers = [Tile::take(memory, 2 * rows), Tile::take(memory, 2 * rows)];
        Self { p, place, begin, tiles, rows, buffers, numbers: memory.take(4 * rows) }
    }

    /// Over all heads that share the block's rows.
    #[inline(always)]
    pub fn steps(&self) -> u32 {
        self.tiles * if KEYS { self.p.forward.group } else { 1 }
    }

    /// The head of a step among those that share a key's, and its tile's first row.
    #[inline(always)]
    pub fn at(&self, step: u32) -> (u32, u32) {
        let tiles = self.tiles.max(1);
        (step / tiles, (self.begin + step % tiles) * self.rows)
    }

    /// The tiles of a step.
    #[inline(always)]
    pub fn tiles_of(&self, step: u32) -> [Tile<T, DIM16>; 2] {
        let [first, second] = &self.buffers;
        [first.at_row(step % 2 * self.rows), second.at_row(step % 2 * self.rows)]
    }

    /// Begins to copy the tiles of a step, and reads the numbers of its queries, one of each for a thread.
    ///
    /// # Safety
    /// The tensors are readable; the step two before was worked off by all threads.
    #[inline(always)]
    pub unsafe fn begin(&self, step: u32) -> [f32; 2] {
        let ((member, first), vector) = (self.at(step), self.p.vector != 0);
        for (copier, to) in side(self.p, &self.place, !KEYS, member).iter().zip(&self.tiles_of(step)) {
            // SAFETY: as the caller promises.
            unsafe { copier.copy(to, first, self.rows, vector) };
        }
        let query = first + thread::index()[0];
        if !KEYS || thread::index()[0] >= self.rows || query >= self.place.queries {
            return [0.0; 2];
        }
        // SAFETY: it is one of the sequence.
        unsafe { statistics(self.p, &self.place.with_member(member), query) }
    }

    /// Keeps the numbers that [`Other::begin`] read.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn keep(&self, step: u32, [lse, delta]: [f32; 2]) {
        if KEYS && thread::index()[0] < self.rows {
            let to = step % 2 * 2 * self.rows + thread::index()[0];
            // SAFETY: the thread's own places, of the buffer that is not in use.
            unsafe {
                self.numbers.set(to, lse);
                self.numbers.set(to + self.rows, delta);
            }
        }
    }

    /// `lse` and `delta` of the lane's query in column `at` of a matrix, to the left or right in the 16 of number `pair`.
    ///
    /// # Safety
    /// A barrier stands between this and [`Other::keep`].
    #[inline(always)]
    pub unsafe fn numbers(&self, step: u32, pair: usize, side: usize, at: usize) -> [f32; 2] {
        let col = 16 * pair as u32 + 8 * side as u32 + warp::lane() % 4 * 2 + at as u32 % 2;
        let from = step % 2 * 2 * self.rows + col;
        // SAFETY: as the caller promises.
        unsafe { [self.numbers.get(from), self.numbers.get(from + self.rows)] }
    }
}
