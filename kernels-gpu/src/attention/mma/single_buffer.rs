//! Attention forward kernel for head dimensions 97 to 256, with one key buffer and one value buffer in shared
//! memory.
//!
//! While the block computes QKᵀ with a tile of keys, it copies the values of the same keys to shared memory.
//! While it computes PV, it copies the next tile of keys.
//!
//! At head dimension 256, a warp has only 16 queries, because their accumulator already takes half of the
//! registers. Each 16 x 16 matrix that `ldmatrix` reads is then used by only two MMAs, so shared memory
//! bandwidth limits the speed. If a warp issued all its copies at once, the writes to shared memory would
//! delay the `ldmatrix` reads. A warp therefore issues its copies one by one between its MMAs.
//!
//! At head dimension 128, a warp has 32 queries, and two blocks fit on an SM.
use cuda_std::copy;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::copy_slices::{BlockState, WarpCopies};
use super::forward::{clear_rest, finish, rescale};
use super::kv_tiles::{KEYS, VALUES};
use super::mask::{At, hide};
use super::matmul::{add_products, products};
use super::output::Accumulator;
use super::params::AttentionParams;
use super::q_fragments::Queries;
use super::softmax::{RowSoftmax, Scores};
use super::tile::{FragmentLanes, Tile};
use super::tile_coords::TileCoords;
use super::window::Window;

/// Bytes of shared memory per block for [`BlockState`] (tile coordinates and pointers), in addition to the
/// tiles.
pub(crate) const KEPT_BYTES: u32 = size_of::<BlockState<u16>>() as u32;

/// Computes attention for one tile of queries. The kernel requires a positive scale and rows that are aligned
/// to 16 bytes. The kernel supports neither a mask nor a softcap.
///
/// # Safety
/// The host validated the kernel argument `p` for this launch. The block has
/// [`Tiling::shared_bytes`](super::tiling::Tiling::shared_bytes) bytes of shared memory.
#[inline(always)]
pub(crate) unsafe fn ping_pong<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const KEYS16: usize,
    const WARPS: u32,
>(
    p: AttentionParams,
) {
    let (own_rows, keys) = (16 * ROWS16 as u32, 16 * KEYS16 as u32);
    let rows = WARPS * own_rows;
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
    let [q_tile, k_tile, v_tile] = [rows, keys, keys].map(|rows| Tile::<T, DIM16>::take(&mut memory, rows));
    let heads = [&p.k, &p.v].map(|heads| coords.key::<T>(heads, p.group).cast_const());
    let block_state = BlockState { coords, heads }.put(&mut memory);
    // SAFETY: the load reads the tile coordinates and pointers in shared memory, which thread 0 wrote before
    // a barrier. This closure is called only after this barrier.
    let block_state = || unsafe { block_state.get(0) };
    // All lanes of a warp have the same warp index, but ptxas treats the index as warp-uniform only after a
    // shuffle from lane 0.
    let warp = warp::shuffle(warp::ALL, thread::index()[0] / warp::SIZE, 0);
    let (copies_of_warp, lanes) =
        (WarpCopies::<DIM16> { warp, warps: WARPS, dim: p.dim }, FragmentLanes::new());
    block::sync();
    let copies = |side: usize, first: u32| {
        let stride = if side == KEYS { p.k.token_stride } else { p.v.token_stride };
        let limit = copies_of_warp.limit(block_state().coords.keys.min(end * keys));
        copies_of_warp.of::<T>(block_state().heads[side], stride, first, limit)
    };
    if begin < end {
        let limit = copies_of_warp.limit(coords.queries);
        // SAFETY: the copies read tensors that the host checked to be readable. They write tiles in shared
        // memory that no thread has accessed yet.
        unsafe {
            copies_of_warp
                .of(coords.query::<T>(&p.q).cast_const(), p.q.token_stride, coords.first, limit)
                .all(&q_tile, rows);
            copies(KEYS, begin * keys).all(&k_tile, keys);
        }
    }
    copy::wait();
    block::sync();

    let own = q_tile.at_row(own_rows * warp);
    let queries = Queries::<T, ROWS16, DIM16, false>::of(own, lanes);
    let mut softmax = RowSoftmax::new(p.scale * core::f32::consts::LOG2_E);
    let mut out: Accumulator<ROWS16, DIM16> = [[[[0.0; 4]; 2]; DIM16]; ROWS16];
    for tile in begin..end {
        let coords = block_state().coords;
        let (window, row) =
            (Window::of(coords.queries, coords.keys, p.before, p.after), coords.first + own_rows * warp);
        // Without the optimization barrier `opaque`, the compiler would compute the row numbers of the copies
        // once, before the loop over tiles. These numbers would then occupy registers throughout the loop.
        let [col, next] = thread::opaque([tile * keys, (tile + 1) * keys]);
        let (at, span) = (At { row, col }, [row, (row + own_rows - 1).min(coords.queries - 1)]);
        let seen = row < coords.queries && !window.hides(span, col, keys);
        let mut scores: Scores<ROWS16, KEYS16> = [[[[0.0; 4]; 2]; KEYS16]; ROWS16];
        let mut values = copies(VALUES, col);
        // SAFETY: the copies of queries and keys were complete before the last barrier. The copies that start
        // here overwrite the previous tile of values, which no warp reads after this barrier.
        unsafe {
            if seen {
                scores = products(&queries, &k_tile, &lanes, |pair| {
                    values.operands(&v_tile, keys, [pair, DIM16 * KEYS16])
                });
                if !window.shows(span, col, keys) {
                    hide(&mut scores, at, &window);
                }
                rescale(&mut out, &mut softmax, &scores);
            } else {
                values.all(&v_tile, keys);
            }
        }
        copy::wait();
        block::sync();
        let mut next_keys = copies(KEYS, next);
        // SAFETY: the copy of the values was complete before the last barrier. The copies that start here
        // overwrite the current tile of keys, which no warp reads after this barrier.
        unsafe {
            if seen {
                let weights =
                    |step: usize| core::array::from_fn(|row| softmax.weights::<T>(row, &scores[row][step]));
                let operands = |pair| next_keys.operands(&k_tile, keys, [pair, DIM16 * KEYS16]);
                add_products::<T, ROWS16, DIM16, KEYS16>(&mut out, weights, &v_tile, &lanes, operands);
            } else {
                next_keys.all(&k_tile, keys);
            }
        }
        copy::wait();
        block::sync();
    }
    let (coords, first) = (block_state().coords, block_state().coords.first + own_rows * warp);
    // SAFETY: `finish` overwrites this warp's rows of the query tile in shared memory, which no other warp
    // accesses. It then writes to the outputs, which the host checked to be writable.
    unsafe { finish::<T, ROWS16, DIM16>(&p, &coords, &softmax, &out, &own, first, true) };
}
