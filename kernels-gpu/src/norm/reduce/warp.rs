//! Reductions of a row by one warp. These reductions add in the same order as torch's CUDA kernels, and
//! therefore give the same bits.
//!
//! The reductions have the summation orders of these kernels of torch 2.11:
//!
//! - [`LayerNorm`]: the vectorised kernel of aten's `layer_norm_kernel.cu`, which uses four warps per row.
//! - [`MeanSquare`]: `Reduce.cuh`, for the mean of an f32 tensor over its last dimension. This kernel uses
//!   one warp per row.
//! - [`FusedMeanSquare`]: the kernel of `torch.nn.RMSNorm`, which is the vectorised kernel of
//!   `layer_norm_kernel.cu` without a mean.
//!
//! In [`LayerNorm`] and [`FusedMeanSquare`], one warp emulates the four warps of torch's kernel. A tile is
//! 128 columns: one vec4 (four columns) per lane. In torch, warp `i % 4` adds the elements of tile `i`. In
//! this module, lane `l` of the one warp has four sets of accumulators. These sets correspond to lane `l` of
//! each of the four torch warps.
//!
//! If the number of columns is not divisible by 4, torch adds the elements in a different order. The
//! reductions in this module still use the order of the vectorised kernel, so their bits can differ from
//! torch's. However, they merge means with the formula that torch uses for this number of columns.
use cuda_std::math::reciprocal;
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, is_scalar, is_vector};

use super::block::{FusedSquares, PartMoments, Squares};
use super::stats::{Cols, Stats};
use super::welford::Welford;

/// Number of tiles (128 columns each) that are added together: one for each of the four warps that torch uses
/// per row.
pub(crate) const GROUP: usize = 4;

/// The accumulators of one thread for a reduction of a row by one warp.
pub(crate) trait Moments: Copy {
    /// The type of the accumulators in the other kernels for this norm. In these kernels, the four warps of a
    /// block share a row.
    type Part: PartMoments;
    /// The accumulators before the first element.
    const EMPTY: Self;
    /// Adds the thread's vec4s (four columns each) of a group of tiles. The access type `A` states whether
    /// one load reads one element or four.
    ///
    /// `counts` contains, for each vec4, how many of its columns are inside the row: 4, except at the end of
    /// the row. Elements past the end are zero.
    fn push<A: Access>(&mut self, group: [[f32; 4]; GROUP], counts: [u32; GROUP]);
    /// Adds the thread's vec4 (four columns) of tile `nth`. The caller adds the tiles in ascending order, and
    /// all tiles are full.
    fn push_vec4(&mut self, nth: u32, lanes: [f32; 4]);
    /// Reduces over the warp. All threads of the warp call this method, and all get the result.
    fn finish(self, cols: Cols, eps: f32) -> Stats;
}

/// LayerNorm: mean and sum of squared differences by Welford's algorithm. Each thread has separate
/// accumulators for each of the four warps that torch uses per row.
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

    /// For each of torch's four warps, reduces the accumulators over the lanes. Then merges the four results.
    /// The final result is in lane 0.
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

    /// Computes the same result as `reduce_uneven` with fewer instructions. For each of torch's four warps,
    /// all lanes must have added the same number of elements, at least one. The result is in lane 0.
    ///
    /// After the first step of a warp reduction, half of the lanes are usually idle. In this function, the
    /// other half of the lanes reduces the elements of a second torch warp instead.
    #[inline(always)]
    fn reduce_even(self) -> Welford {
        let [a, b, c, d] = self.warps();
        let eighth = a.reduce_even_with(c, 16).reduce_even_with(b.reduce_even_with(d, 16), 8);
        let warp_tile = eighth.reduce_even_from(4, eighth.half());
        let of = |warp: Welford| warp.count * warp::SIZE as f32;
        // Four lanes now have the results of the four torch warps. Lane 0 has the result of `a`, lane 8 of
        // `b`, lane 16 of `c`, and lane 24 of `d`.
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
        // Before the last group of tiles (128 columns each), all four torch warps have added the same number
        // of elements. The reciprocals of the counts are therefore equal for all four warps.
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

/// RMSNorm: sum of squares in the order of `x.float().pow(2).mean(-1)`, which many models use instead of
/// `torch.nn.RMSNorm`.
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

/// RMSNorm: sum of squares in the order of `torch.nn.RMSNorm`. Each thread has a separate sum for each of the
/// four warps that torch uses per row.
#[derive(Clone, Copy)]
pub(crate) struct FusedMeanSquare([f32; GROUP]);

impl FusedMeanSquare {
    #[inline(always)]
    fn add(&mut self, warp: usize, lanes: [f32; 4]) {
        for i in 0..4 {
            self.0[warp] = fma(lanes[i], lanes[i], self.0[warp]);
        }
    }

    /// Reduces the sums of torch's four warps over the lanes, and adds the four results. All lanes return the
    /// same bits.
    ///
    /// After the first step of a warp reduction, half of the lanes would compute the same values as the other
    /// half. These lanes reduce the sums of a second torch warp instead.
    #[inline(always)]
    fn reduce(self) -> f32 {
        let lane = warp::lane();
        let other = |value: f32, distance: u32| warp::shuffle_xor(warp::ALL, value, distance);
        let pair = |lower: f32, upper: f32, distance: u32| {
            let is_lower = lane & distance == 0;
            let (own, sent) = if is_lower { (lower, upper) } else { (upper, lower) };
            own + other(sent, distance)
        };
        let [a, b, c, d] = self.0;
        let mut sum = pair(pair(a, c, 16), pair(b, d, 16), 8);
        let mut distance = 4;
        while distance > 0 {
            sum += other(sum, distance);
            distance /= 2;
        }
        // The lanes 0 to 7 now have the sum of `a`, the lanes from 8 on of `b`, from 16 on of `c`, and from
        // 24 on of `d`.
        sum += other(sum, 16);
        sum + other(sum, 8)
    }
}

impl Moments for FusedMeanSquare {
    type Part = FusedSquares;
    const EMPTY: Self = Self([0.0; GROUP]);

    #[inline(always)]
    fn push<A: Access>(&mut self, group: [[f32; 4]; GROUP], _: [u32; GROUP]) {
        for tile in 0..GROUP {
            self.add(tile, group[tile]);
        }
    }

    #[inline(always)]
    fn push_vec4(&mut self, nth: u32, lanes: [f32; 4]) {
        self.add(nth as usize % GROUP, lanes);
    }

    #[inline(always)]
    fn finish(self, cols: Cols, eps: f32) -> Stats {
        Stats { mean: 0.0, inv: rsqrt(self.reduce() / cols.count + eps) }
    }
}
