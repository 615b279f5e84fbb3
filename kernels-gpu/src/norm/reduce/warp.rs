//! What a norm knows of its row, reduced in the order of torch's CUDA kernels, so that the bits are theirs.
//!
//! The orders are those of torch 2.11: `LayerNorm` of aten's `layer_norm_kernel.cu` (vectorised kernel: four
//! warps a row), `MeanSquare` of `Reduce.cuh` for the mean of an f32 tensor over its last dimension (one warp
//! a row). Here a warp has a row: with 32 threads a tile is the quads of one of torch's warps, tiles of the
//! same number modulo 4 are of the same warp, and a thread plays its four namesakes. For rows that torch
//! would not vectorise (columns not divisible by 4) torch takes another order of elements; these keep theirs,
//! and combine means as torch does there.
use cuda_std::math::reciprocal;
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, is_scalar, is_vector};

use super::block::{PartMoments, Squares};
use super::stats::{Cols, Stats};
use super::welford::Welford;

/// Tiles that are taken in together: one of each of torch's warps.
pub(crate) const GROUP: usize = 4;

/// A reduction of a row by a warp.
pub(crate) trait Moments: Copy {
    /// The same by the warps of a block.
    type Part: PartMoments;
    /// Of no element.
    const EMPTY: Self;
    /// Takes in a group of tiles, `counts` being the lanes that there are of each quad: all but in the row's
    /// last group. What is not there is zero. `A` as that of the rows.
    fn push<A: Access>(&mut self, group: [[f32; 4]; GROUP], counts: [u32; GROUP]);
    /// Takes in the quad of tile `nth`, one tile after the other, all of them full.
    fn push_vec4(&mut self, nth: u32, lanes: [f32; 4]);
    /// Reduces over the warp. All its threads call it, and get the result.
    fn finish(self, cols: Cols, eps: f32) -> Stats;
}

/// Mean and sum of squared differences by Welford's method, for each of torch's warps: LayerNorm.
#[derive(Clone, Copy)]
pub(crate) struct LayerNorm {
    mean: [f32; GROUP],
    m2: [f32; GROUP],
    count: [f32; GROUP],
}

impl LayerNorm {
    #[inline(always)]
    fn warp(&self, warp: usize) -> Welford {
        Welford { mean: self.mean[warp], m2: self.m2[warp], count: self.count[warp] }
    }

    /// Folds each of torch's warps over its lanes, then them; lane 0 has the result.
    #[inline(always)]
    fn reduce_uneven(self, by_fours: bool) -> Welford {
        let mut warps = self.warps();
        let mut distance = warp::SIZE / 2;
        while distance > 0 {
            let down = |value| warp::shuffle_down(warp::ALL, value, distance);
            for warp in 0..GROUP {
                let Welford { mean, m2, count } = warps[warp];
                let upper = Welford { mean: down(mean), m2: down(m2), count: down(count) };
                warps[warp] = warps[warp].with(upper, by_fours);
            }
            distance /= 2;
        }
        let [a, b, c, d] = warps;
        a.with(c, by_fours).with(b.with(d, by_fours), by_fours)
    }

    /// Folds all, where all threads have seen as many elements of each warp, one at least; lane 0 has the
    /// result.
    ///
    /// A fold over a warp leaves half of its lanes idle from the first step on: these do it for another of
    /// torch's warps.
    #[inline(always)]
    fn reduce_even(self) -> Welford {
        let [a, b, c, d] = self.warps();
        let eighth = a.reduce_even_with(c, 16).reduce_even_with(b.reduce_even_with(d, 16), 8);
        let warp_tile = eighth.reduce_even_from(4, eighth.half());
        let of = |warp: Welford| warp.count * warp::SIZE as f32;
        // Lane 0 has a, lane 8 b, lane 16 c, lane 24 d.
        let upper = if warp::lane() & 8 == 0 { of(c) } else { of(d) };
        let pair = warp_tile.with(warp_tile.above(16, upper), true);
        pair.with(pair.above(8, of(b) + of(d)), true)
    }

    #[inline(always)]
    fn warps(&self) -> [Welford; GROUP] {
        [self.warp(0), self.warp(1), self.warp(2), self.warp(3)]
    }
}

impl Moments for LayerNorm {
    type Part = Welford;
    const EMPTY: Self = Self { mean: [0.0; GROUP], m2: [0.0; GROUP], count: [0.0; GROUP] };

    #[inline(always)]
    fn push<A: Access>(&mut self, group: [[f32; 4]; GROUP], counts: [u32; GROUP]) {
        // Before the last group all four have seen as many elements.
        let before = self.count[0];
        let mut inv_counts = [0.0; 4];
        for i in 0..4 {
            inv_counts[i] = reciprocal(before + (i + 1) as f32);
        }
        for warp in 0..GROUP {
            let (mut seen, mut kept) = (self.warp(warp), self.warp(warp));
            for i in 0..4 {
                seen.add(group[warp][i], inv_counts[i]);
                if is_scalar::<A>() && i as u32 + 1 == counts[warp] {
                    kept = seen;
                }
            }
            if is_vector::<A>() && counts[warp] > 0 {
                kept = seen;
            }
            (self.mean[warp], self.m2[warp]) = (kept.mean, kept.m2);
            self.count[warp] = before + counts[warp] as f32;
        }
    }

    #[inline(always)]
    fn push_vec4(&mut self, nth: u32, lanes: [f32; 4]) {
        let warp = nth as usize % GROUP;
        let mut seen = self.warp(warp);
        seen.add_vec4(nth / GROUP as u32, lanes);
        (self.mean[warp], self.m2[warp], self.count[warp]) = (seen.mean, seen.m2, seen.count);
    }

    #[inline(always)]
    fn finish(self, cols: Cols, eps: f32) -> Stats {
        let all = if cols.even { self.reduce_even() } else { self.reduce_uneven(cols.by_fours) };
        let (mean, m2) = (warp::shuffle(warp::ALL, all.mean, 0), warp::shuffle(warp::ALL, all.m2, 0));
        Stats { mean, inv: rsqrt(m2 / cols.count + eps) }
    }
}

/// Sum of squares in the order of `x.float().pow(2).mean(-1)`: the RMSNorms that models write out.
#[derive(Clone, Copy)]
pub(crate) struct MeanSquare([f32; 4]);

impl Moments for MeanSquare {
    type Part = Squares;
    const EMPTY: Self = Self([0.0; 4]);

    #[inline(always)]
    fn push<A: Access>(&mut self, group: [[f32; 4]; GROUP], _: [u32; GROUP]) {
        for tile in 0..GROUP {
            for i in 0..4 {
                self.0[i] += group[tile][i] * group[tile][i];
            }
        }
    }

    #[inline(always)]
    fn push_vec4(&mut self, _: u32, lanes: [f32; 4]) {
        for i in 0..4 {
            self.0[i] += lanes[i] * lanes[i];
        }
    }

    #[inline(always)]
    fn finish(self, cols: Cols, eps: f32) -> Stats {
        let [a, b, c, d] = self.0;
        let sum = warp::sum(a + b + c + d, warp::SIZE);
        Stats { mean: 0.0, inv: rsqrt(sum * cols.inv + eps) }
    }
}
