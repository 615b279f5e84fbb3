//! What a norm knows of its row, reduced in the order of torch's CUDA kernels, so that the bits are theirs.
//!
//! The orders are those of torch 2.11: `LayerNorm` of aten's `layer_norm_kernel.cu` (vectorised kernel: four warps a
//! row), `MeanSquare` of `Reduce.cuh` for the mean of an f32 tensor over its last dimension (one warp a row). Here
//! a warp has a row: with 32 threads a tile is the quads of one of torch's warps, tiles of the same number modulo 4 are of
//! the same warp, and a thread plays its four namesakes. For rows that torch would not vectorise (columns not
//! divisible by 4) torch takes another order; these keep theirs.
use cuda_std::math::reciprocal;
use cuda_std::prelude::*;
use cuda_std::quad::{LEN, MOST_HELD, SCALAR};

use crate::part_moments::{PartMoments, Squares};

/// Tiles that are taken in together: one of each of torch's warps.
pub(crate) const GROUP: usize = 4;

/// `1 / count` for the elements of each quad that a thread holds, counted from 1: what [`reciprocal`] says.
const INVERSES: [[f32; 4]; MOST_HELD] = {
    let (mut inverses, mut at) = ([[0.0; 4]; MOST_HELD], 0);
    while at < 4 * MOST_HELD {
        inverses[at / 4][at % 4] = 1.0 / (at + 1) as f32;
        at += 1;
    }
    inverses
};

/// What a row is normalised with: `(x - mean) * inv`.
#[derive(Clone, Copy)]
pub(crate) struct Stats {
    pub mean: f32,
    pub inv: f32,
}

/// A row's columns as numbers: what is divided by.
#[derive(Clone, Copy)]
pub(crate) struct Cols {
    pub count: f32,
    /// `1 / count`.
    pub inv: f32,
    /// Do whole tiles fill the row, so that every thread has seen as many elements of each of torch's warps?
    pub even: bool,
}

/// A reduction of a row by a warp.
pub(crate) trait Moments: Copy {
    /// The same by the warps of a block.
    type Part: PartMoments;
    /// Of no element.
    const EMPTY: Self;
    /// Takes in a group of tiles, `counts` being the lanes that there are of each quad: all but in the row's last group.
    /// What is not there is zero. `ACCESS` as that of the rows.
    fn push<const ACCESS: u32>(&mut self, group: [[f32; 4]; GROUP], counts: [u32; GROUP]);
    /// Takes in the quad of tile `nth`, one tile after the other, all of them full.
    fn push_quad(&mut self, nth: u32, lanes: [f32; 4]);
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

/// The moments of some of a row's elements.
#[derive(Clone, Copy)]
pub(crate) struct Welford {
    pub mean: f32,
    pub m2: f32,
    pub count: f32,
}

impl Welford {
    /// Of no element.
    pub const EMPTY: Self = Self { mean: 0.0, m2: 0.0, count: 0.0 };

    /// Takes in `x`, the element that makes them `1 / inv_count`.
    #[inline(always)]
    pub fn add(&mut self, x: f32, inv_count: f32) {
        let delta = x - self.mean;
        self.mean = fma(delta, inv_count, self.mean);
        self.m2 = fma(delta, x - self.mean, self.m2);
    }

    /// Of the elements of both, `self` being the lower thread's or warp's.
    #[inline(always)]
    pub fn with(self, upper: Self) -> Self {
        let count = self.count + upper.count;
        if count <= 0.0 {
            return Self::EMPTY;
        }
        let inv_count = reciprocal(count);
        let (own, theirs) = (self.count * inv_count, upper.count * inv_count);
        let delta = self.mean - upper.mean;
        Self {
            mean: fma(upper.mean, theirs, own * self.mean),
            m2: fma(own, upper.count * (delta * delta), upper.m2 + self.m2),
            count,
        }
    }
}

impl Welford {
    /// Takes in the quad of number `nth`, which is known when the kernel is compiled, and so are the reciprocals of
    /// its counts.
    #[inline(always)]
    pub fn add_quad(&mut self, nth: u32, lanes: [f32; 4]) {
        for i in 0..4 {
            self.add(lanes[i], INVERSES[nth as usize][i]);
        }
        self.count = (LEN * (nth + 1)) as f32;
    }

    /// What either has of the elements of two that are as many. Counts double from step to step, and this keeps its bits:
    /// the reciprocal of a double is half of the reciprocal.
    #[inline(always)]
    fn half(&self) -> f32 {
        self.count * reciprocal(self.count * 2.0)
    }

    /// Of the elements of two that are as many: `lower` and `upper` are their means, `self` has the sum of their `m2` and
    /// the count of one.
    #[inline(always)]
    fn doubled(self, [lower, upper]: [f32; 2], half: f32) -> Self {
        let Self { m2, count, .. } = self;
        let delta = lower - upper;
        Self {
            mean: fma(upper, half, half * lower),
            m2: fma(half, count * (delta * delta), m2),
            count: count * 2.0,
        }
    }

    /// That of the lane `distance` above, whose count is `count`.
    #[inline(always)]
    fn above(self, distance: u32, count: f32) -> Self {
        let down = |value| warp::shuffle_down(warp::ALL, value, distance);
        Self { mean: down(self.mean), m2: down(self.m2), count }
    }

    /// With those of the lanes up to `distance` above, each of which has seen as many elements, one at least: the result
    /// of the lanes that have so many above them. No count is exchanged.
    #[inline(always)]
    fn fold_even_from(self, mut distance: u32) -> Self {
        let (mut all, half) = (self, self.half());
        while distance > 0 {
            let upper = all.above(distance, all.count);
            all = Self { m2: upper.m2 + all.m2, ..all }.doubled([all.mean, upper.mean], half);
            distance /= 2;
        }
        all
    }

    /// With those of all lanes; lane 0 has the result.
    #[inline(always)]
    pub fn fold_even(self) -> Self {
        self.fold_even_from(warp::SIZE / 2)
    }

    /// One step of two folds at once: lanes without `bit` go on with `self`, those with it with `other`.
    #[inline(always)]
    fn fold_even_beside(self, other: Self, bit: u32) -> Self {
        let is_upper = warp::lane() & bit != 0;
        let (kept, sent) = if is_upper { (other, self) } else { (self, other) };
        let across = |value| warp::shuffle_xor(warp::ALL, value, bit);
        let (mean, m2) = (across(sent.mean), across(sent.m2));
        let means = if is_upper { [mean, kept.mean] } else { [kept.mean, mean] };
        Self { m2: m2 + kept.m2, ..kept }.doubled(means, kept.half())
    }
}

impl LayerNorm {
    #[inline(always)]
    fn warp(&self, warp: usize) -> Welford {
        Welford { mean: self.mean[warp], m2: self.m2[warp], count: self.count[warp] }
    }

    /// Folds each of torch's warps over its lanes, then them; lane 0 has the result.
    #[inline(always)]
    fn fold_uneven(self) -> Welford {
        let mut warps = self.warps();
        let mut distance = warp::SIZE / 2;
        while distance > 0 {
            let down = |value| warp::shuffle_down(warp::ALL, value, distance);
            for warp in 0..GROUP {
                let Welford { mean, m2, count } = warps[warp];
                warps[warp] =
                    warps[warp].with(Welford { mean: down(mean), m2: down(m2), count: down(count) });
            }
            distance /= 2;
        }
        let [a, b, c, d] = warps;
        a.with(c).with(b.with(d))
    }

    /// Folds all, where all threads have seen as many elements of each warp, one at least; lane 0 has the result.
    ///
    /// A fold over a warp leaves half of its lanes idle from the first step on: these do it for another of torch's warps.
    #[inline(always)]
    fn fold_even(self) -> Welford {
        let [a, b, c, d] = self.warps();
        let eighth = a.fold_even_beside(c, 16).fold_even_beside(b.fold_even_beside(d, 16), 8);
        let own = eighth.fold_even_from(4);
        let of = |warp: Welford| warp.count * warp::SIZE as f32;
        // Lane 0 has a, lane 8 b, lane 16 c, lane 24 d.
        let upper = if warp::lane() & 8 == 0 { of(c) } else { of(d) };
        let pair = own.with(own.above(16, upper));
        pair.with(pair.above(8, of(b) + of(d)))
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
    fn push<const ACCESS: u32>(&mut self, group: [[f32; 4]; GROUP], counts: [u32; GROUP]) {
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
                if ACCESS == SCALAR && i as u32 + 1 == counts[warp] {
                    kept = seen;
                }
            }
            if ACCESS != SCALAR && counts[warp] > 0 {
                kept = seen;
            }
            (self.mean[warp], self.m2[warp]) = (kept.mean, kept.m2);
            self.count[warp] = before + counts[warp] as f32;
        }
    }

    #[inline(always)]
    fn push_quad(&mut self, nth: u32, lanes: [f32; 4]) {
        let warp = nth as usize % GROUP;
        let mut seen = self.warp(warp);
        seen.add_quad(nth / GROUP as u32, lanes);
        (self.mean[warp], self.m2[warp], self.count[warp]) = (seen.mean, seen.m2, seen.count);
    }

    #[inline(always)]
    fn finish(self, cols: Cols, eps: f32) -> Stats {
        let all = if cols.even { self.fold_even() } else { self.fold_uneven() };
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
    fn push<const ACCESS: u32>(&mut self, group: [[f32; 4]; GROUP], _: [u32; GROUP]) {
        for tile in 0..GROUP {
            for i in 0..4 {
                self.0[i] += group[tile][i] * group[tile][i];
            }
        }
    }

    #[inline(always)]
    fn push_quad(&mut self, _: u32, lanes: [f32; 4]) {
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
