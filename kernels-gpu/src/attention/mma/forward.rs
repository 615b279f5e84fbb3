//! Double-buffered attention forward kernel. A block computes the attention of one tile of queries over all
//! keys that these queries attend to. While the block computes on one tile of keys and values, it copies the
//! next tile to shared memory.
use cuda_std::copy;
use cuda_std::mem;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::kv_tiles::{KEYS, Keys, VALUES};
use super::mask::{At, Lines, cap, hide};
use super::matmul::{add_product, products};
use super::output::{Accumulator, Output};
use super::padding::UnusedRows;
use super::params::AttentionParams;
use super::q_fragments::Queries;
use super::softmax::{RowSoftmax, Scores};
use super::tile::{Copier, FragmentLanes, Tile};
use super::tile_coords::TileCoords;
use super::window::Window;

/// Computes attention for one tile of queries. If the const parameter `Q_IN_REGISTERS` is true, the queries
/// stay in registers, otherwise in shared memory. If `GENERAL` is true, the kernel supports a mask, a
/// softcap, any scale and any alignment.
///
/// # Safety
/// The host validated the kernel argument `p` for this launch. The block has
/// [`Tiling::shared_bytes`](super::tiling::Tiling::shared_bytes) bytes of shared memory.
#[inline(always)]
pub(crate) unsafe fn forward<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const KEYS16: usize,
    const WARPS: u32,
    const Q_IN_REGISTERS: bool,
    const GENERAL: bool,
>(
    p: AttentionParams,
) {
    let (rows, keys) = (WARPS * 16 * ROWS16 as u32, 16 * KEYS16 as u32);
    // SAFETY: the host validated the kernel argument `p`.
    let Some(coords) = (unsafe { TileCoords::of_block(&p, rows) }) else {
        // SAFETY: `clear_rest` writes zeros to padding rows of the outputs, which the host checked to be
        // writable. It requires packed sequences (several sequences in one tensor) and a block without a
        // tile. `of_block` returns `None` only for such a block of such a launch.
        return unsafe { clear_rest(&p, rows) };
    };
    let window = Window::of(coords.queries, coords.keys, p.before, p.after);
    let last = coords.queries - 1;
    let [begin, end] = window.tiles([coords.first, (coords.first + rows - 1).min(last)], keys);

    let mut memory = SharedMemory::of_launch();
    let (vector, threads) = (!GENERAL || p.vector != 0, WARPS * warp::SIZE);
    let q_tile = Tile::<T, DIM16>::take(&mut memory, rows);
    let kv = Keys::<T, DIM16>::take(&mut memory, &p, &coords, [keys, end], threads, vector);
    let own = thread::index()[0] / warp::SIZE * 16 * ROWS16 as u32;
    // `own` is the index of the warp's first row in the tile. All lanes of a warp have the same value, but
    // ptxas treats `own` as warp-uniform only after a shuffle from lane 0.
    let own = warp::shuffle(warp::ALL, own, 0);
    let lanes = FragmentLanes::new();
    let mut queries = Queries::<T, ROWS16, DIM16, Q_IN_REGISTERS>::of(q_tile.at_row(own), lanes);
    if begin < end {
        let there = [coords.queries, p.dim];
        let copier = Copier::<T, DIM16>::of(coords.query(&p.q), p.q.token_stride, there, threads);
        // SAFETY: the copies read tensors that the host checked to be readable. They write tiles in shared
        // memory that no thread has accessed yet.
        unsafe {
            copier.copy(&q_tile, coords.first, rows, vector);
            kv.copy(KEYS, begin);
            kv.copy(VALUES, begin);
        }
    }
    copy::wait();
    block::sync();
    // SAFETY: the copies are complete, and the barrier above followed.
    unsafe { queries.hold() };

    // The softmax multiplies scores by a factor that converts them to base-2 exponents. If `GENERAL` is true,
    // the function `cap` has already multiplied the scores by `scale * log2(e)`, so the factor is 1.
    let mut softmax = RowSoftmax::new(if GENERAL { 1.0 } else { p.scale * core::f32::consts::LOG2_E });
    let mut out: Accumulator<ROWS16, DIM16> = [[[[0.0; 4]; 2]; DIM16]; ROWS16];
    let first = coords.first + own;
    let span = [first, (first + 16 * ROWS16 as u32 - 1).min(last)];
    for tile in begin..end {
        // SAFETY: all warps finished reading this buffer before the last barrier.
        unsafe {
            kv.copy(KEYS, tile + 1);
            kv.copy(VALUES, tile + 1);
        }
        // Without the optimization barrier `opaque`, the compiler would compute each row's first and last
        // visible key once, before the loop over tiles. These values would then occupy registers throughout
        // the loop.
        let [query, _] = thread::opaque([first, 0]);
        let at = At { row: query, col: tile * keys };
        let seen = first <= last && !window.hides(span, at.col, keys);
        if seen {
            // SAFETY: the matrix multiplication reads tiles whose copies were complete before the last
            // barrier. The host checked that the mask is readable.
            unsafe {
                let mut scores: Scores<ROWS16, KEYS16> =
                    products(&queries, &kv.tile(KEYS, tile), &lanes, |_| ());
                if GENERAL {
                    cap(&mut scores, &p);
                    Lines::of(&p.mask, &coords, false).add::<T, ROWS16, KEYS16>(&mut scores, at);
                }
                if !window.shows(span, at.col, keys) {
                    hide(&mut scores, at, &window);
                }
                accumulate(&mut out, &mut softmax, &scores, &kv.tile(VALUES, tile), &lanes);
            }
        }
        copy::wait();
        block::sync();
    }
    // SAFETY: `finish` overwrites this warp's rows of the query tile in shared memory, which no other warp
    // accesses. It then writes to the outputs, which the host checked to be writable.
    unsafe { finish::<T, ROWS16, DIM16>(&p, &coords, &softmax, &out, &q_tile.at_row(own), first, vector) };
}

/// Writes to the padding rows of the outputs, which are the rows of a packed tensor (several sequences in one
/// tensor) after its last sequence. `out` gets zeros, and `lse` (log-sum-exp) gets minus infinity. A launch
/// can have more blocks than there are tiles of queries, and only the blocks without a tile call this
/// function.
///
/// # Safety
/// The launch has packed sequences, and this block has no tile of queries. The outputs are writable.
#[inline(always)]
pub(crate) unsafe fn clear_rest(p: &AttentionParams, rows: u32) {
    // SAFETY: `of_block` and `clear` require packed sequences (several sequences in one tensor), a block
    // without a tile of queries, and writable outputs. The caller guarantees all three.
    unsafe {
        let unused_rows = UnusedRows::of_block(p, rows, false);
        unused_rows.clear(&p.out);
        unused_rows.clear_lse(p);
    }
}

/// Computes unnormalized probabilities from the scores of a key tile. Then multiplies these probabilities by
/// the value tile `values`, and adds the product to the accumulator `out`.
///
/// # Safety
/// The copy of `values` to shared memory is complete, and a barrier followed.
#[inline(always)]
pub(crate) unsafe fn accumulate<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const KEYS16: usize,
>(
    out: &mut Accumulator<ROWS16, DIM16>,
    softmax: &mut RowSoftmax<ROWS16>,
    scores: &Scores<ROWS16, KEYS16>,
    values: &Tile<T, DIM16>,
    lanes: &FragmentLanes<DIM16>,
) {
    rescale(out, softmax, scores);
    for step in 0..KEYS16 {
        let weights = core::array::from_fn(|row| softmax.weights::<T>(row, &scores[row][step]));
        // SAFETY: the caller guarantees that the copy of the values is complete, and that a barrier followed.
        unsafe { add_product(out, weights, values, lanes, step) };
    }
}

/// Updates the row maxima with the scores of a key tile. If a maximum rose, multiplies the row's accumulator
/// by a factor, so that the accumulated probabilities are relative to the new maximum.
#[inline(always)]
pub(crate) fn rescale<const ROWS16: usize, const DIM16: usize, const KEYS16: usize>(
    out: &mut Accumulator<ROWS16, DIM16>,
    softmax: &mut RowSoftmax<ROWS16>,
    scores: &Scores<ROWS16, KEYS16>,
) {
    if let Some(factors) = softmax.advance(scores) {
        for row in 0..ROWS16 {
            let [upper, lower] = factors[row];
            for pair in &mut out[row] {
                for c in pair {
                    *c = [c[0] * upper, c[1] * upper, c[2] * lower, c[3] * lower];
                }
            }
        }
    }
}

/// Divides the accumulator by the row sums and writes the result. Also writes the log-sum-exp of each row,
/// unless the pointer `lse` is null.
///
/// # Safety
/// `tile` is scratch memory that only this warp accesses. It has at least as many rows as the warp has
/// queries. The outputs are writable.
#[inline(always)]
pub(crate) unsafe fn finish<T: MatrixElem, const ROWS16: usize, const DIM16: usize>(
    p: &AttentionParams,
    coords: &TileCoords,
    softmax: &RowSoftmax<ROWS16>,
    out: &Accumulator<ROWS16, DIM16>,
    tile: &Tile<T, DIM16>,
    first: u32,
    vector: bool,
) {
    let (lane, mut inverses) = (warp::lane(), [[0.0; 2]; ROWS16]);
    for row in 0..ROWS16 {
        for half in 0..2 {
            let [inverse, lse] = softmax.finish(row, half);
            inverses[row][half] = inverse;
            let query = first + 16 * row as u32 + 8 * half as u32 + lane / 4;
            if !p.lse.is_null() && lane.is_multiple_of(4) && query < coords.queries {
                let at = p.lse.wrapping_add(coords.number(p, query));
                // SAFETY: the store writes the element of `lse` for this query. The element exists, because
                // the host checked that `lse` has one element per head and query, and the sequence contains
                // query number `query`.
                unsafe { mem::store_u32(at.cast(), lse.to_bits(), Store::Default) };
            }
        }
    }
    let (head, stride) = (coords.query(&p.out), p.out.token_stride);
    let output = Output { head, stride, first, rows: coords.queries, dim: p.dim, vector };
    // SAFETY: the caller guarantees that only this warp accesses `tile`, and that the output is writable.
    unsafe { output.write(tile, out, &inverses) };
}
