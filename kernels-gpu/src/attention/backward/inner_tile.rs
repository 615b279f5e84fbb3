//! Inner-loop tiles of the attention backward pass. A block keeps one outer-loop tile in shared memory, and
//! loops over the inner-loop tiles. If the rows of the outer-loop tile are queries, the rows of the
//! inner-loop tiles are keys, and vice versa.
use cuda_std::mma::{Chunk, MatrixElem};
use cuda_std::prelude::*;

use super::delta::statistics;
use super::params::BackwardParams;
use crate::attention::mma::tile::{Copier, Tile};
use crate::attention::mma::tile_coords::TileCoords;
use crate::layout::heads::Heads;

/// Returns two `Copier` objects, one per operand, which copy rows from global to shared memory. The operands
/// are keys and values if `keys` is true, otherwise queries and dO. With GQA, several query heads share a key
/// head. `member` is the index of a query head among them, and selects the head whose queries and dO are
/// copied.
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

/// One iteration of the inner loop, which processes one inner-loop tile for one query head.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// Number of the step, counted from 0.
    pub number: u32,
    /// Index of the query head among the query heads that share a key head (GQA).
    pub member: u32,
    /// Number of the inner-loop tile in its sequence.
    tile: u32,
}

/// Buffers in shared memory for the tiles over which a block loops. Each of two operands (K and V, or Q and
/// dO) has two buffers.
///
/// If `KEYS` is true, the block computes gradients of keys and values, and loops over tiles of queries. It
/// processes the queries of all query heads that share the key head (GQA), one head after the other. The
/// struct then also has buffers for two statistics of each query: the log-sum-exp `lse`, and `delta`, the sum
/// of `dO * O`.
pub(super) struct InnerTile<
    'p,
    T,
    const DIM16: usize,
    const WARPS: u32,
    const KEYS: bool,
    const GENERAL: bool,
> {
    /// The kernel argument.
    pub p: &'p BackwardParams,
    /// Coordinates of the outer-loop tile.
    pub coords: TileCoords,
    /// Number of the first inner-loop tile that the block processes.
    pub begin: u32,
    /// Number of inner-loop tiles per query head.
    pub tiles: u32,
    /// Rows per inner-loop tile.
    pub rows: u32,
    buffers: [Tile<T, DIM16>; 2],
    /// The statistics `lse` (log-sum-exp) and `delta` (sum of `dO * O`) of the buffered queries. A chunk of
    /// 16 bytes contains both statistics of two queries, in the order `lse`, `delta`, `lse`, `delta`.
    numbers: Shared<Chunk>,
}

impl<'p, T: MatrixElem, const DIM16: usize, const WARPS: u32, const KEYS: bool, const GENERAL: bool>
    InnerTile<'p, T, DIM16, WARPS, KEYS, GENERAL>
{
    /// Allocates buffers for the tiles of `rows` rows over which the block loops. For each query head, the
    /// block processes `tiles` tiles, from tile number `begin` on.
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

    /// Returns the number of steps, which are iterations of the loop over tiles. If `KEYS` is true, the loop
    /// processes the tiles of all query heads that share the key head (GQA).
    #[inline(always)]
    pub fn steps(&self) -> u32 {
        self.tiles * if KEYS { self.p.forward.group } else { 1 }
    }

    /// Returns the first step (iteration) of the inner loop.
    #[inline(always)]
    pub fn first(&self) -> Step {
        Step { number: 0, member: 0, tile: self.begin }
    }

    /// Returns the step (loop iteration) that follows `step`. It processes the next tile of the same query
    /// head, or the first tile of the next query head.
    #[inline(always)]
    pub fn after(&self, step: Step) -> Step {
        let number = step.number + 1;
        if step.tile + 1 < self.begin + self.tiles {
            return Step { number, tile: step.tile + 1, ..step };
        }
        Step { number, member: step.member + 1, tile: self.begin }
    }

    /// Returns the first row of the inner-loop tile of step `step`.
    #[inline(always)]
    pub fn row(&self, step: Step) -> u32 {
        step.tile * self.rows
    }

    /// Returns the buffers of the two inner-loop operands of step `step`.
    #[inline(always)]
    pub fn tiles_of(&self, step: Step) -> [Tile<T, DIM16>; 2] {
        let [first, second] = &self.buffers;
        [first, second].map(|tile| tile.at_row(step.number % 2 * self.rows))
    }

    /// Starts to copy the tile of operand number `tensor` (0 or 1) for the loop iteration `step`. If `step`
    /// is after the last iteration, this function does nothing.
    ///
    /// # Safety
    /// The tensors are readable. The copy overwrites the buffer of iteration number `step.number - 2`, and
    /// all threads have finished that iteration.
    #[inline(always)]
    pub unsafe fn copy(&self, step: Step, tensor: usize) {
        if step.number >= self.steps() {
            return;
        }
        let copiers = operands(self.p, &self.coords, !KEYS, step.member, WARPS * warp::SIZE);
        let vector = !GENERAL || self.p.vector != 0;
        // SAFETY: the copy reads rows of the tensors and writes a buffer of the loop iteration `step`. The
        // caller guarantees that the tensors are readable, and that no thread accesses this buffer.
        unsafe { copiers[tensor].copy(&self.tiles_of(step)[tensor], self.row(step), self.rows, vector) };
    }

    /// Loads two statistics of each query of the loop iteration `step`: `lse` (log-sum-exp) and `delta` (sum
    /// of `dO * O`). Each thread loads and returns the statistics of one query. Threads without a query
    /// return zeros. If `KEYS` is false, all threads return zeros.
    ///
    /// # Safety
    /// The host validated the kernel argument.
    #[inline(always)]
    pub unsafe fn read(&self, step: Step) -> [f32; 2] {
        let query = self.row(step) + thread::index()[0];
        let there = step.number < self.steps() && query < self.coords.queries;
        if !KEYS || thread::index()[0] >= self.rows || !there {
            return [0.0; 2];
        }
        // SAFETY: the function `statistics` requires a query that is in the sequence. The condition above
        // checked that this query is.
        unsafe { statistics(self.p, &self.coords.with_member(step.member), query) }
    }

    /// Stores the statistics that [`InnerTile::read`] returned for the loop iteration `step` to shared
    /// memory. If `KEYS` is false, this function does nothing.
    ///
    /// # Safety
    /// The function overwrites the statistics of iteration number `step.number - 2`, and all threads have
    /// finished that iteration.
    #[inline(always)]
    pub unsafe fn store(&self, step: Step, [lse, delta]: [f32; 2]) {
        if KEYS && thread::index()[0] < self.rows {
            let to = 2 * (step.number % 2 * self.rows + thread::index()[0]);
            let numbers = self.numbers.cast::<f32>();
            // SAFETY: each thread writes two elements of a buffer in shared memory, which no other thread
            // writes. The caller guarantees that no thread reads this buffer now.
            unsafe {
                numbers.set(to, lse);
                numbers.set(to + 1, delta);
            }
        }
    }

    /// In an MMA accumulator (16 x 8) of the transposed scores, a lane has elements of two columns, which are
    /// queries. Returns the statistics `[lse, delta]` of these two queries: the log-sum-exp, and the sum of
    /// `dO * O`. `pair` is the number of a block of 16 columns. `operands` selects its left (0) or right (1)
    /// eight columns.
    ///
    /// # Safety
    /// [`InnerTile::store`] was called for step `step`, and the block has executed a barrier since then.
    #[inline(always)]
    pub unsafe fn numbers(&self, step: Step, pair: usize, operands: usize) -> [[f32; 2]; 2] {
        let two = 8 * pair as u32 + 4 * operands as u32 + warp::lane() % 4;
        let at = step.number % 2 * self.rows / 2 + two;
        // SAFETY: the load reads element `at` of the statistics of this step in shared memory. The caller
        // guarantees that a barrier separates the stores of these statistics from this load.
        let Chunk([a, b, c, d]) = unsafe { self.numbers.get(at) };
        [[a, b], [c, d]].map(|numbers| numbers.map(f32::from_bits))
    }
}
