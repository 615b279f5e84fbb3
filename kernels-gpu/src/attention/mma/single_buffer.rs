//! The kernel of heads of 97 to 256 columns: one tile of keys and one of values, and copies of the one take
//! turns with the products with the other.
//!
//! At 256 columns a warp has 16 queries, whose sums are half of the registers, so every matrix read from
//! shared memory serves two products only, and shared memory is the limit. Copies that all begin at once keep
//! the reads waiting: a warp begins them one by one. At 128 columns it has 32, and two blocks have room side
//! by side.
use cuda_std::copy;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::copy_slices::{Kept, Share};
use super::forward::{clear_rest, finish, rescale};
use super::kv_tiles::{KEYS, VALUES};
use super::mask::{At, hide};
use super::matmul::{add_products, products};
use super::output::Sums;
use super::params::Params;
use super::q_fragments::Queries;
use super::softmax::{Scores, Softmax};
use super::tile::{Lanes, Tile};
use super::tile_coords::Place;
use super::window::Band;

/// Shared memory for what a block keeps there beside the tiles.
pub(crate) const KEPT_BYTES: u32 = size_of::<Kept<u16>>() as u32;

/// Attention of one tile of queries, without what the general kernels have.
///
/// # Safety
/// The parameters are those of a launch that the host checked, with
/// [`Tiling::shared_bytes`](super::tiling::Tiling::shared_bytes).
#[inline(always)]
pub(crate) unsafe fn turns<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const KEYS16: usize,
    const WARPS: u32,
>(
    p: Params,
) {
    let (own_rows, keys) = (16 * ROWS16 as u32, 16 * KEYS16 as u32);
    let rows = WARPS * own_rows;
    // SAFETY: as the caller promises.
    let Some(place) = (unsafe { Place::of_block(&p, rows) }) else {
        // SAFETY: as the caller promises.
        return unsafe { clear_rest(&p, rows) };
    };
    let band = Band::of(place.queries, place.keys, p.before, p.after);
    let last = place.queries - 1;
    let [begin, end] = band.tiles([place.first, (place.first + rows - 1).min(last)], keys);

    let mut memory = SharedMemory::of_launch();
    let [q_tile, k_tile, v_tile] = [rows, keys, keys].map(|rows| Tile::<T, DIM16>::take(&mut memory, rows));
    let heads = [&p.k, &p.v].map(|heads| place.key::<T>(heads, p.group).cast_const());
    let kept = Kept { place, heads }.put(&mut memory);
    // SAFETY: a barrier stands between this and the writes.
    let kept = || unsafe { kept.get(0) };
    // From one lane, so that ptxas knows it to be the warp's.
    let warp = warp::shuffle(warp::ALL, thread::index()[0] / warp::SIZE, 0);
    let (share, lanes) = (Share::<DIM16> { warp, warps: WARPS, dim: p.dim }, Lanes::new());
    block::sync();
    let copies = |side: usize, first: u32| {
        let stride = if side == KEYS { p.k.token_stride } else { p.v.token_stride };
        let limit = share.limit(kept().place.keys.min(end * keys));
        share.of::<T>(kept().heads[side], stride, first, limit)
    };
    if begin < end {
        let limit = share.limit(place.queries);
        // SAFETY: the tensors are readable; nobody uses the tiles.
        unsafe {
            share
                .of(place.query::<T>(&p.q).cast_const(), p.q.token_stride, place.first, limit)
                .all(&q_tile, rows);
            copies(KEYS, begin * keys).all(&k_tile, keys);
        }
    }
    copy::wait();
    block::sync();

    let own = q_tile.at_row(own_rows * warp);
    let queries = Queries::<T, ROWS16, DIM16, false>::of(own, lanes);
    let mut softmax = Softmax::new(p.scale * core::f32::consts::LOG2_E);
    let mut out: Sums<ROWS16, DIM16> = [[[[0.0; 4]; 2]; DIM16]; ROWS16];
    for tile in begin..end {
        let place = kept().place;
        let (band, row) =
            (Band::of(place.queries, place.keys, p.before, p.after), place.first + own_rows * warp);
        // Else the rows that are copied stay in registers from tile to tile.
        let [col, next] = thread::forget([tile * keys, (tile + 1) * keys]);
        let (at, span) = (At { row, col }, [row, (row + own_rows - 1).min(place.queries - 1)]);
        let seen = row < place.queries && !band.hides(span, col, keys);
        let mut scores: Scores<ROWS16, KEYS16> = [[[[0.0; 4]; 2]; KEYS16]; ROWS16];
        let mut values = copies(VALUES, col);
        // SAFETY: queries and keys have been waited for; the values of the tile before are used up.
        unsafe {
            if seen {
                scores = products(&queries, &k_tile, &lanes, |pair| {
                    values.beside(&v_tile, keys, [pair, DIM16 * KEYS16])
                });
                if !band.shows(span, col, keys) {
                    hide(&mut scores, at, &band);
                }
                rescale(&mut out, &mut softmax, &scores);
            } else {
                values.all(&v_tile, keys);
            }
        }
        copy::wait();
        block::sync();
        let mut next_keys = copies(KEYS, next);
        // SAFETY: values have been waited for; the keys are used up.
        unsafe {
            if seen {
                let weights =
                    |step: usize| core::array::from_fn(|row| softmax.weights::<T>(row, &scores[row][step]));
                let beside = |pair| next_keys.beside(&k_tile, keys, [pair, DIM16 * KEYS16]);
                add_products::<T, ROWS16, DIM16, KEYS16>(&mut out, weights, &v_tile, &lanes, beside);
            } else {
                next_keys.all(&k_tile, keys);
            }
        }
        copy::wait();
        block::sync();
    }
    let (place, first) = (kept().place, kept().place.first + own_rows * warp);
    // SAFETY: the warp is the only one that used its queries, and has done so.
    unsafe { finish::<T, ROWS16, DIM16>(&p, &place, &softmax, &out, &own, first, true) };
}
