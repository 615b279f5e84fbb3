//! Attention backward kernel. Each block computes the gradients of the rows of one tile, the outer-loop tile,
//! which stays in shared memory. The block loops over other tiles, the inner-loop tiles. If the rows of the
//! outer-loop tile are queries, the inner-loop tiles contain keys. If they are keys, the inner-loop tiles
//! contain queries.
use cuda_std::copy;
use cuda_std::math::ex2_ftz;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::inner_tile::{InnerTile, Step, operands};
use super::outer_tile::{OuterTile, rows_of};
use super::params::BackwardParams;
use super::scores::{cap_with_slopes, left};
use crate::attention::mma::mask::{At, Lines, hide};
use crate::attention::mma::matmul::{add_product, products};
use crate::attention::mma::output::{Accumulator, Output};
use crate::attention::mma::padding::UnusedRows;
use crate::attention::mma::q_fragments::Queries;
use crate::attention::mma::softmax::Scores;
use crate::attention::mma::tile::Tile;
use crate::attention::mma::tile_coords::TileCoords;
use crate::layout::heads::Heads;

/// Computes the gradients of the rows of one outer-loop tile, which a block keeps while it loops over other
/// tiles. The rows are keys if `KEYS` is true, otherwise queries.
///
/// The const parameters `FIRST` and `SECOND` select the gradients that the kernel computes. If the rows are
/// keys, the kernel computes `dk` if `FIRST` is true, and `dv` if `SECOND` is true. If the rows are queries,
/// the kernel computes `dq`, `FIRST` is true, and `SECOND` is false. If `GENERAL` is true, the kernel
/// supports a mask, a softcap, any scale and any alignment.
///
/// # Safety
/// The host validated the kernel argument `p` for this launch. The block has
/// [`shared_bytes`](super::params::shared_bytes) bytes of shared memory.
#[inline(always)]
pub(crate) unsafe fn gradients<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const COLS16: usize,
    const WARPS: u32,
    const KEYS: bool,
    const FIRST: bool,
    const SECOND: bool,
    const GENERAL: bool,
>(
    p: BackwardParams,
) {
    let (rows, cols) = (WARPS * 16 * ROWS16 as u32, 16 * COLS16 as u32);
    // SAFETY: the host validated the kernel argument `p`.
    let Some(coords) = (unsafe { TileCoords::of_rows(&p.forward, rows, KEYS) }) else {
        // SAFETY: `clear_rest` writes zeros to padding rows of the outputs, which the host checked to be
        // writable. It requires packed sequences (several sequences in one tensor) and a block without a
        // tile. `of_rows` returns `None` only for such a block of such a launch.
        return unsafe { clear_rest::<KEYS, FIRST, SECOND>(&p, rows) };
    };
    let (window, there) = rows_of::<KEYS>(&p, &coords);
    let vector = !GENERAL || p.vector != 0;
    let begin = window.first(coords.first) as u32 / cols;
    // Without the optimization barrier `opaque`, LLVM would merge the `min` of the next line with a `max` in
    // the function `window.end`. The merged instruction has three inputs, and sm_80 does not have it.
    let [end, _] = thread::opaque([window.end((coords.first + rows).min(there) - 1) as u32, 0]);
    let tiles = if end as i32 > 0 { end.div_ceil(cols).saturating_sub(begin) } else { 0 };

    let mut memory = SharedMemory::of_launch();
    let tiles_of_rows = [(); 2].map(|()| Tile::<T, DIM16>::take(&mut memory, rows));
    let inner =
        InnerTile::<T, DIM16, WARPS, KEYS, GENERAL>::take(&mut memory, &p, coords, [begin, tiles, cols]);
    if inner.steps() > 0 {
        for (copier, to) in operands(&p, &coords, KEYS, 0, WARPS * warp::SIZE).iter().zip(&tiles_of_rows) {
            // SAFETY: the copy reads rows of the tensors, which the host checked to be readable. It writes to
            // the outer-loop tiles in shared memory, which no thread has accessed yet.
            unsafe { copier.copy(to, coords.first, rows, vector) };
        }
        // SAFETY: the copies and loads read tensors, which the host checked to be readable. They fill the
        // shared-memory buffers for the first iteration of the loop. No thread has accessed these buffers
        // yet, because the loop has not started.
        unsafe {
            inner.copy(inner.first(), 0);
            inner.copy(inner.first(), 1);
            inner.store(inner.first(), inner.read(inner.first()));
        }
    }
    copy::wait();
    block::sync();

    // SAFETY: the host validated the kernel argument `p`.
    let outer =
        unsafe { OuterTile::<T, ROWS16, DIM16>::of::<KEYS>(&p, &coords, window, there, tiles_of_rows) };
    let mut sums: [Accumulator<ROWS16, DIM16>; 2] = [[[[[0.0; 4]; 2]; DIM16]; ROWS16]; 2];
    let mut step = inner.first();
    while step.number < inner.steps() {
        let after = inner.after(step);
        // SAFETY: the copy and the load read tensors, which the host checked to be readable. The copy
        // overwrites the shared-memory buffer of the previous loop iteration. All warps finished that
        // iteration before the last barrier.
        let numbers = unsafe {
            inner.copy(after, 0);
            inner.read(after)
        };
        // SAFETY: `add` reads the tiles of this loop iteration in shared memory, whose copies were complete
        // before the last barrier. It also reads the mask, which the host checked to be readable.
        unsafe {
            add::<T, ROWS16, DIM16, COLS16, WARPS, KEYS, FIRST, SECOND, GENERAL>(
                &mut sums,
                &outer,
                &inner,
                [step, after],
            )
        };
        copy::wait();
        // SAFETY: the store overwrites the per-query statistics of the previous loop iteration in shared
        // memory. All warps finished that iteration before the last barrier.
        unsafe { inner.store(after, numbers) };
        block::sync();
        step = after;
    }
    // SAFETY: `write` overwrites this warp's rows of the block's tiles in shared memory, which no other warp
    // accesses. It then writes to the outputs, which the host checked to be writable.
    unsafe { write::<T, ROWS16, DIM16, KEYS, FIRST, SECOND>(&p, &coords, there, &outer, &sums, vector) };
}

/// Writes zeros to the padding rows of each gradient that the kernel computes. Padding rows are the rows of a
/// packed tensor after its last sequence. In a launch with packed sequences (several sequences in one
/// tensor), the grid can have more blocks than the sequences have tiles. Only a block without a tile calls
/// this function.
///
/// # Safety
/// The launch has packed sequences, and this block has no tile to compute. The outputs are writable.
#[inline(always)]
unsafe fn clear_rest<const KEYS: bool, const FIRST: bool, const SECOND: bool>(p: &BackwardParams, rows: u32) {
    // SAFETY: `clear` and `of_block` require packed sequences (several sequences in one tensor), a block
    // without a tile, and writable outputs. The caller guarantees all three.
    unsafe {
        let unused_rows = UnusedRows::of_block(&p.forward, rows, KEYS);
        if KEYS && FIRST {
            unused_rows.clear(&p.dk);
        }
        if KEYS && SECOND {
            unused_rows.clear(&p.dv);
        }
        if !KEYS {
            unused_rows.clear(&p.dq);
        }
    }
}

/// Adds the contribution of step `step` to the gradient accumulators `sums`. A step is one iteration of the
/// loop over the inner-loop tiles. During the matrix multiplications, the function also starts to copy the
/// second operand (V or dO) of the next step, `after`.
///
/// # Safety
/// The copies of the tiles of step `step` to shared memory were complete before the last barrier. All threads
/// have finished the step before `step`. If there is a mask, it is readable.
#[inline(always)]
unsafe fn add<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const COLS16: usize,
    const WARPS: u32,
    const KEYS: bool,
    const FIRST: bool,
    const SECOND: bool,
    const GENERAL: bool,
>(
    sums: &mut [Accumulator<ROWS16, DIM16>; 2],
    outer: &OuterTile<T, ROWS16, DIM16>,
    inner: &InnerTile<T, DIM16, WARPS, KEYS, GENERAL>,
    [step, after]: [Step; 2],
) {
    let ([first, last], col, cols) = (outer.span, inner.row(step), inner.rows);
    if first > last || outer.window.hides(outer.span, col, cols) {
        // SAFETY: this copy overwrites the tile that the previous loop iteration used. The caller guarantees
        // that all threads have finished that iteration.
        return unsafe { inner.copy(after, 1) };
    }
    let (f, right) = (&inner.p.forward, inner.tiles_of(step));
    // Without the optimization barrier `opaque`, the compiler would compute each row's offset in the mask
    // once, before the loop over steps. The offsets would then occupy registers throughout the loop.
    let at = At { row: thread::opaque([first, 0])[0], col };
    let mut slopes = [[[[1.0; 4]; 2]; COLS16]; ROWS16];
    // SAFETY: the matrix multiplications read the tiles of step `step`, whose copies to shared memory are
    // complete. `add` reads the mask, which is readable. The caller guarantees both facts. The copy for step
    // `after` overwrites a buffer that no thread still reads, because all threads have finished the step
    // before `step`.
    unsafe {
        let product = |operands: usize| -> Scores<ROWS16, COLS16> {
            let rows = Queries::<T, ROWS16, DIM16, false>::of(outer.tiles[operands], outer.lanes);
            products(&rows, &right[operands], &outer.lanes, |_| ())
        };
        let mut scores = product(0);
        // The copies for the next loop iteration start only here, after the first matrix multiplication,
        // because they would delay it.
        inner.copy(after, 1);
        if GENERAL {
            slopes = cap_with_slopes(&mut scores, f);
            Lines::of(&f.mask, &inner.coords.with_member(step.member), KEYS)
                .add::<T, ROWS16, COLS16>(&mut scores, at);
        }
        if !outer.window.shows(outer.span, col, cols) {
            hide(&mut scores, at, &outer.window);
        }
        let weight_gradients = if FIRST { product(1) } else { scores };
        // `factor` converts scores to base-2 exponents. If `GENERAL` is true, `cap_with_slopes` has already
        // converted the scores, so `factor` is 1.
        let factor = if GENERAL { 1.0 } else { f.scale * core::f32::consts::LOG2_E };
        for pair in 0..COLS16 {
            let (mut weights, mut gradients) = ([[[0.0; 4]; 2]; ROWS16], [[[0.0; 4]; 2]; ROWS16]);
            for operands in 0..2 {
                let of_cols = if KEYS { inner.numbers(step, pair, operands) } else { [[0.0; 2]; 2] };
                for row in 0..ROWS16 {
                    for at in 0..4 {
                        let [lse, delta] = if KEYS { of_cols[at % 2] } else { outer.numbers[row][at / 2] };
                        let weight = ex2_ftz(fma(scores[row][pair][operands][at], factor, -lse));
                        weights[row][operands][at] = weight;
                        gradients[row][operands][at] = weight
                            * (weight_gradients[row][pair][operands][at] - delta)
                            * slopes[row][pair][operands][at];
                    }
                }
            }
            if SECOND {
                add_product(&mut sums[1], weights.map(|row| left::<T>(&row)), &right[1], &outer.lanes, pair);
            }
            if FIRST {
                add_product(
                    &mut sums[0],
                    gradients.map(|row| left::<T>(&row)),
                    &right[0],
                    &outer.lanes,
                    pair,
                );
            }
        }
    }
}

/// Writes the gradients of the warp's rows to global memory. First, the warp copies the gradients to shared
/// memory, into its own rows of the block's tiles, whose previous contents are no longer needed.
///
/// # Safety
/// No other warp accesses this warp's rows of the tiles. The outputs are writable.
#[inline(always)]
unsafe fn write<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const KEYS: bool,
    const FIRST: bool,
    const SECOND: bool,
>(
    p: &BackwardParams,
    coords: &TileCoords,
    there: u32,
    outer: &OuterTile<T, ROWS16, DIM16>,
    sums: &[Accumulator<ROWS16, DIM16>; 2],
    vector: bool,
) {
    let f = &p.forward;
    let rows = |heads: &Heads, head: *mut T| Output {
        head,
        stride: heads.token_stride,
        first: outer.span[0],
        rows: there,
        dim: f.dim,
        vector,
    };
    // SAFETY: the function called here overwrites the warp's rows of a tile in shared memory, and writes to
    // an output. The caller guarantees that no other warp accesses these rows, and that the outputs are
    // writable.
    unsafe {
        if KEYS && SECOND {
            rows(&p.dv, coords.key(&p.dv, f.group)).write(&outer.tiles[1], &sums[1], &[[1.0; 2]; ROWS16]);
        }
        if KEYS && FIRST {
            rows(&p.dk, coords.key(&p.dk, f.group)).write(&outer.tiles[0], &sums[0], &[[f.scale; 2]; ROWS16]);
        }
        if !KEYS {
            rows(&p.dq, coords.query(&p.dq)).write(&outer.tiles[0], &sums[0], &[[f.scale; 2]; ROWS16]);
        }
    }
}
