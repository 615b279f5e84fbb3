//! The first kernel of [`decode`](crate::attention::decode): attention of a block's keys, of which each warp
//! has a quarter.
use cuda_std::copy;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::params::{DecodeParams, KEYS, ROWS, SPLIT};
use super::partial::Found;
use crate::attention::mma::forward::accumulate;
use crate::attention::mma::matmul::products;
use crate::attention::mma::output::Sums;
use crate::attention::mma::params::{Params, WARPS};
use crate::attention::mma::q_fragments::Queries;
use crate::attention::mma::softmax::{Scores, Softmax};
use crate::attention::mma::tile::{Copier, Lanes, Tile};
use crate::attention::mma::tile_coords::Place;
use crate::attention::mma::window::Band;
use crate::layout::heads::divide;

/// The place of a block's heads, the first row of its tile, and the number of the tile among all.
#[inline(always)]
fn place(f: &Params, above: u32) -> (Place, u32) {
    let (head, tile) = divide(above, f.tiles);
    let (batch, kv_head) = divide(head, divide(f.heads, f.group).0);
    (Place::whole(f, batch, kv_head * f.group), tile * ROWS)
}

/// The weighted values of a block's keys, for 16 rows.
///
/// # Safety
/// The parameters are those of a launch that the host checked, with
/// [`shared_bytes`](super::params::shared_bytes).
#[inline(always)]
pub(crate) unsafe fn decode<T: MatrixElem, const DIM16: usize>(p: DecodeParams) {
    let f = &p.forward;
    let (above, split) = divide(thread::block_index()[0], p.splits);
    let (place, first) = place(f, above);
    let mut memory = SharedMemory::of_launch();
    let q_tile = Tile::<T, DIM16>::take(&mut memory, ROWS);
    let [k_tiles, v_tiles] = [(); 2].map(|()| Tile::<T, DIM16>::take(&mut memory, 2 * KEYS));
    let [k_copier, v_copier] = [&f.k, &f.v]
        .map(|heads| (place.key(heads, f.group), heads.token_stride))
        .map(|(head, stride)| Copier::<T, DIM16>::of(head, stride, [f.keys, f.dim], WARPS * warp::SIZE));
    let (begin, end) = (split * SPLIT, (split * SPLIT + SPLIT).min(f.keys));
    // SAFETY: the tensors are readable; of two buffers, the one that is copied to was used up before the last
    // barrier.
    let copy = |key: u32| unsafe {
        let to = key / KEYS % 2 * KEYS;
        k_copier.copy(&k_tiles.at_row(to), key, KEYS, true);
        v_copier.copy(&v_tiles.at_row(to), key, KEYS, true);
    };
    // SAFETY: as above.
    unsafe { copy_queries(f, &place, first, &q_tile) };
    copy(begin);
    copy::wait();
    block::sync();

    let lanes = Lanes::new();
    let mut queries = Queries::<T, 1, DIM16, true>::of(q_tile, lanes);
    // SAFETY: they have been waited for.
    unsafe { queries.hold() };
    let own = warp::shuffle(warp::ALL, thread::index()[0] / warp::SIZE, 0);
    let band = Band::of(f.queries, f.keys, f.before, f.after);
    let seen = [0, 8].map(|half| {
        let (_, query) = divide(first + half + warp::lane() / 4, f.queries);
        [band.first(query), band.end(query)]
    });
    let mut softmax = Softmax::new(f.scale * core::f32::consts::LOG2_E);
    let mut out: Sums<1, DIM16> = [[[[0.0; 4]; 2]; DIM16]; 1];
    let mut key = begin;
    while key < end {
        if key + KEYS < end {
            copy(key + KEYS);
        }
        let from = key / KEYS % 2 * KEYS + 16 * own;
        // SAFETY: queries, keys and values have been waited for.
        unsafe {
            let mut scores =
                products::<T, 1, DIM16, 1, true>(&queries, &k_tiles.at_row(from), &lanes, |_| ());
            hide(&mut scores, key + 16 * own, &seen);
            accumulate(&mut out, &mut softmax, &scores, &v_tiles.at_row(from), &lanes);
        }
        copy::wait();
        block::sync();
        key += KEYS;
    }
    let found = Found::<DIM16>::of_block((f.queries * f.group - first).min(ROWS), f.dim);
    // SAFETY: nobody reads tiles after the last barrier; the host checked that there is room for the block's
    // part.
    unsafe {
        found.keep(own, &softmax, &out);
        block::sync();
        found.add_up(&p, above * p.splits + split);
    }
}

/// Copies the block's rows: row `member * queries + query` is of that member of the heads that share keys.
///
/// # Safety
/// The queries are readable; nobody uses the tile.
#[inline(always)]
unsafe fn copy_queries<T: MatrixElem, const DIM16: usize>(
    f: &Params,
    place: &Place,
    first: u32,
    tile: &Tile<T, DIM16>,
) {
    let chunks = 2 * DIM16 as u32;
    for turn in 0..(ROWS * chunks).div_ceil(WARPS * warp::SIZE) {
        let at = turn * WARPS * warp::SIZE + thread::index()[0];
        let (row, chunk) = (at / chunks, at % chunks);
        if row < ROWS {
            let (member, query) = divide(first + row, f.queries);
            let there = first + row < f.queries * f.group && 8 * chunk < f.dim;
            let offset = i64::from(query) * f.q.token_stride + i64::from(8 * chunk);
            let from = place.with_member(member).query::<T>(&f.q).wrapping_offset(offset as isize);
            // SAFETY: as the caller promises.
            unsafe { tile.copy_chunk(row, chunk, from, there) };
        }
    }
}

/// Hides the keys from `key` on that the lane's rows do not see: they see those between the two numbers of
/// each.
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
