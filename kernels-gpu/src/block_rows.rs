//! LayerNorm of rows that stay in the registers of the four warps of a block, each of which plays one of torch's.
//!
//! A row is on its way at once, and nothing waits in shared memory but what warps exchange. Rows leave L1 to weight and bias: with
//! those in f32 5120 columns took 182 us so and 189 us else (benches/results/nvidia-h200/2026-11-22/bf7ffc7/overlap.txt).
use cuda_std::prelude::*;
use cuda_std::quad::{TEAM, TILE};

use crate::affine::{Affine, Norm, Parameters};
use crate::moments::{LayerNorm, Stats};
use crate::params::Params;
use crate::welford::Welford;

/// Warps of a row.
const WARPS: u32 = Params::SHARING / warp::SIZE;

/// Normalises a row of `4 * HELD` tiles.
///
/// # Safety
/// The host checked that `x` and `y` hold `p.rows` rows of as many columns, fewer than 2^32, weight and bias one row of the
/// form `A`, all `Rows::is_vector`, and that `y` overlaps nothing else. Blocks have `Params::SHARING` threads and two numbers
/// for each of their warps in shared memory.
#[inline(always)]
pub(crate) unsafe fn block_rows<T: Elem, A: Parameters, const HELD: usize>(
    x: Rows,
    affine: Affine,
    y: Rows,
    p: Params,
) {
    let team = Team { row: u64::from(thread::block_index()[0]), ..Team::of_block() };
    let at = RowAt::of_few(team, p.rows as u32, p.inner);
    let columns = QuadColumns::of_block(at, p.cols);
    // SAFETY: as the caller promises; a row is its block's own.
    let (x, affine, y) = unsafe {
        let x = QuadRow::<T, TEAM>::of(&x, at, columns);
        (x, A::of(&affine, columns), QuadRowMut::<T, TEAM>::of(&y, at, columns))
    };
    let row: [Quad<T>; HELD] = core::array::from_fn(|nth| x.get_once(nth as u32 * WARPS));
    let stats = stats(&row, p);
    for nth in 0..HELD {
        let tile = nth as u32 * WARPS;
        let (weight, bias) = affine.lanes(tile);
        let lanes = row[nth].forget_lanes().lanes();
        y.put(tile, Quad::from_lanes(LayerNorm::apply(stats, lanes, weight, bias)));
    }
}

/// What the row is normalised with, in torch's order.
#[inline(always)]
fn stats<T: Elem, const HELD: usize>(row: &[Quad<T>; HELD], p: Params) -> Stats {
    let meeting = SharedMemory::of_launch().take::<[f32; 2]>(WARPS);
    let mut own = Welford::EMPTY;
    for nth in 0..HELD {
        own.add_quad(nth as u32, row[nth].lanes());
    }
    let half = own.known_half();
    let Welford { mean, m2, .. } = own.fold_even_from(warp::SIZE / 2, half);
    if warp::lane() == 0 {
        // SAFETY: a place for each warp, which only its lane 0 writes, before the barrier.
        unsafe { meeting.set(thread::index()[0] / warp::SIZE, [mean, m2]) };
    }
    block::sync();
    let warp = |number: u32| {
        // SAFETY: every place was written before the barrier.
        let [mean, m2] = unsafe { meeting.get(number) };
        Welford { mean, m2, count: (HELD as u32 * TILE) as f32 }
    };
    let both = |lower: Welford, upper| lower.with_as_many(upper, half);
    let all = both(both(warp(0), warp(2)), both(warp(1), warp(3)));
    Stats { mean: all.mean, inv: rsqrt(all.m2 / p.cols as f32 + p.eps) }
}
