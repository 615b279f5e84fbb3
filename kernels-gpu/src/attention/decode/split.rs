//! First kernel of split-KV decoding ([`decode`](crate::attention::decode)). Each block computes attention
//! over one split of the keys.
use cuda_std::copy;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::params::{DecodeParams, KEYS, ROWS, SPLIT};
use super::partial::Found;
use crate::attention::mma::forward::accumulate;
use crate::attention::mma::matmul::products;
use crate::attention::mma::output::Accumulator;
use crate::attention::mma::params::{AttentionParams, WARPS};
use crate::attention::mma::q_fragments::Queries;
use crate::attention::mma::softmax::{RowSoftmax, Scores};
use crate::attention::mma::tile::{Copier, FragmentLanes, Tile};
use crate::attention::mma::tile_coords::TileCoords;
use crate::attention::mma::window::Window;
use crate::layout::heads::divide;

/// Returns the coordinates of a query head and the first row of the block's row tile. The tile contains
/// queries of all query heads that share a key head (GQA), and the returned head is the first of these query
/// heads. `above` is the number of the row tile. The row tiles of all batches and key heads are numbered
/// consecutively.
#[inline(always)]
fn coords(f: &AttentionParams, above: u32) -> (TileCoords, u32) {
    let (head, tile) = divide(above, f.tiles);
    let (batch, kv_head) = divide(head, divide(f.heads, f.group).0);
    (TileCoords::whole(f, batch, kv_head * f.group), tile * ROWS)
}

/// Computes the attention of up to 16 rows over one split (a fixed number of keys). A row is one query of one
/// query head.
///
/// # Safety
/// The host validated the kernel argument `p` for this launch. The block has
/// [`shared_bytes`](super::params::shared_bytes) bytes of shared memory.
#[inline(always)]
pub(crate) unsafe fn decode<T: MatrixElem, const DIM16: usize>(p: DecodeParams) {
    let f = &p.forward;
    let (above, split) = divide(thread::block_index()[0], p.splits);
    let (coords, first) = coords(f, above);
    let mut memory = SharedMemory::of_launch();
    let q_tile = Tile::<T, DIM16>::take(&mut memory, ROWS);
    let [k_tiles, v_tiles] = [(); 2].map(|()| Tile::<T, DIM16>::take(&mut memory, 2 * KEYS));
    let [k_copier, v_copier] = [&f.k, &f.v]
        .map(|heads| (coords.key(heads, f.group), heads.token_stride))
        .map(|(head, stride)| Copier::<T, DIM16>::of(head, stride, [f.keys, f.dim], WARPS * warp::SIZE));
    let (begin, end) = (split * SPLIT, (split * SPLIT + SPLIT).min(f.keys));
    // SAFETY: the copies read tensors that the host checked to be readable. They overwrite buffers in shared
    // memory that all warps finished reading before the last barrier.
    let copy = |key: u32| unsafe {
        let to = key / KEYS % 2 * KEYS;
        k_copier.copy(&k_tiles.at_row(to), key, KEYS, true);
        v_copier.copy(&v_tiles.at_row(to), key, KEYS, true);
    };
    // SAFETY: the copy reads queries, which the host checked to be readable. It writes `q_tile`, which no
    // thread has accessed yet.
    unsafe { copy_queries(f, &coords, first, &q_tile) };
    copy(begin);
    copy::wait();
    block::sync();

    let lanes = FragmentLanes::new();
    let mut queries = Queries::<T, 1, DIM16, true>::of(q_tile, lanes);
    // SAFETY: the copies are complete, and a barrier followed.
    unsafe { queries.hold() };
    let warp = warp::shuffle(warp::ALL, thread::index()[0] / warp::SIZE, 0);
    let window = Window::of(f.queries, f.keys, f.before, f.after);
    let seen = [0, 8].map(|half| {
        let (_, query) = divide(first + half + warp::lane() / 4, f.queries);
        [window.first(query), window.end(query)]
    });
    let mut softmax = RowSoftmax::new(f.scale * core::f32::consts::LOG2_E);
    let mut out: Accumulator<1, DIM16> = [[[[0.0; 4]; 2]; DIM16]; 1];
    let mut key = begin;
    while key < end {
        if key + KEYS < end {
            copy(key + KEYS);
        }
        let from = key / KEYS % 2 * KEYS + 16 * warp;
        // SAFETY: the matrix multiplications read queries, keys and values in shared memory. The copies of
        // these tiles were complete before the last barrier.
        unsafe {
            let mut scores =
                products::<T, 1, DIM16, 1, true>(&queries, &k_tiles.at_row(from), &lanes, |_| ());
            hide(&mut scores, key + 16 * warp, &seen);
            accumulate(&mut out, &mut softmax, &scores, &v_tiles.at_row(from), &lanes);
        }
        copy::wait();
        block::sync();
        key += KEYS;
    }
    let found = Found::<DIM16>::of_block((f.queries * f.group - first).min(ROWS), f.dim);
    // SAFETY: `store` overwrites the tiles in shared memory, which no thread reads after the last barrier.
    // `add_up` writes to the outputs, and the host checked that they have an entry for every split of the
    // keys of every row tile.
    unsafe {
        found.store(warp, &softmax, &out);
        block::sync();
        found.add_up(&p, above * p.splits + split);
    }
}

/// Copies the block's queries to `tile`. In grouped-query attention (GQA), a group of query heads shares a
/// key head, and their queries are numbered as rows of one matrix. Row `member * queries + query` is query
/// number `query` of query head number `member` of the group. The copy starts at row `first`.
///
/// # Safety
/// The queries are readable, and no thread uses the tile.
#[inline(always)]
unsafe fn copy_queries<T: MatrixElem, const DIM16: usize>(
    f: &AttentionParams,
    coords: &TileCoords,
    first: u32,
    tile: &Tile<T, DIM16>,
) {
    let chunks = 2 * DIM16 as u32;
    for step in 0..(ROWS * chunks).div_ceil(WARPS * warp::SIZE) {
        let at = step * WARPS * warp::SIZE + thread::index()[0];
        let (row, chunk) = (at / chunks, at % chunks);
        if row < ROWS {
            let (member, query) = divide(first + row, f.queries);
            let there = first + row < f.queries * f.group && 8 * chunk < f.dim;
            let offset = i64::from(query) * f.q.token_stride + i64::from(8 * chunk);
            let from = coords.with_member(member).query::<T>(&f.q).wrapping_offset(offset as isize);
            // SAFETY: `copy_chunk` reads global memory only if `there` is true, and `there` is false for rows
            // and columns that do not exist. The caller guarantees that no thread uses the tile.
            unsafe { tile.copy_chunk(row, chunk, from, there) };
        }
    }
}

/// Sets the scores of keys outside a row's sliding window to minus infinity. The scores belong to 16 keys,
/// and `key` is the index of the first of them. The lane has elements of two rows. For each of these rows,
/// `seen` has the index of the first visible key, and the index of the last visible key plus one.
#[inline(always)]
fn hide(scores: &mut Scores<1, 1>, key: u32, seen: &[[i32; 2]; 2]) {
    for side in 0..2 {
        for half in 0..2 {
            for odd in 0..2 {
                let key = (key + 8 * side as u32 + warp::lane() % 4 * 2 + odd as u32) as i32;
                if key < seen[half][0] || key >= seen[half][1] {
                    scores[0][0][side][2 * half + odd] = f32::NEG_INFINITY;
                }
            }
        }
    }
}
