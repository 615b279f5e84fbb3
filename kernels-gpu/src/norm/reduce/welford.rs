//! Mean and sum of squared differences by Welford's method, of a thread and of a warp: what LayerNorm is made of.
use cuda_std::math::reciprocal;
use cuda_std::prelude::*;
use cuda_std::vec4::{LEN, MAX_IN_REGISTERS};

/// `1 / count` for the elements of each quad that a thread holds, counted from 1: what [`reciprocal`] says.
const INVERSES: [[f32; 4]; MAX_IN_REGISTERS] = {
    let (mut inverses, mut at) = ([[0.0; 4]; MAX_IN_REGISTERS], 0);
    while at < 4 * MAX_IN_REGISTERS {
        inverses[at / 4][at % 4] = 1.0 / (at + 1) as f32;
        at += 1;
    }
    inverses
};

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
    ///
    /// torch has two formulas for the mean. The vectorised kernel, for rows of a multiple of 4 columns (`by_fours`),
    /// takes the weighted sum of both means, which can differ from two equal means by a rounding. The other kernel adds a
    /// part of their difference, so that a constant row has a variance of exactly 0.
    #[inline(always)]
    pub fn with(self, upper: Self, by_fours: bool) -> Self {
        let count = self.count + upper.count;
        if count <= 0.0 {
            return Self::EMPTY;
        }
        let inv_count = reciprocal(count);
        let (warp_tile, theirs) = (self.count * inv_count, upper.count * inv_count);
        let delta = self.mean - upper.mean;
        if by_fours {
            return Self {
                mean: fma(upper.mean, theirs, warp_tile * self.mean),
                m2: fma(warp_tile, upper.count * (delta * delta), upper.m2 + self.m2),
                count,
            };
        }
        // Without elements above, the square may be infinite and the product NaN.
        let between = if upper.count > 0.0 { upper.count * (delta * delta) } else { 0.0 };
        Self { mean: fma(-delta, theirs, self.mean), m2: fma(warp_tile, between, upper.m2 + self.m2), count }
    }

    /// Takes in the quad of number `nth`, which is known when the kernel is compiled, and so are the reciprocals of
    /// its counts.
    #[inline(always)]
    pub fn add_vec4(&mut self, nth: u32, lanes: [f32; 4]) {
        for i in 0..4 {
            self.add(lanes[i], INVERSES[nth as usize][i]);
        }
        self.count = (LEN * (nth + 1)) as f32;
    }

    /// What either has of the elements of two that are as many. Counts double from step to step, and this keeps its bits:
    /// the reciprocal of a double is half of the reciprocal.
    #[inline(always)]
    pub fn half(&self) -> f32 {
        self.count * reciprocal(self.count * 2.0)
    }

    /// The same of a count that is known when the kernel is compiled, and so is the result.
    #[inline(always)]
    pub fn known_half(&self) -> f32 {
        self.count * (1.0 / (self.count * 2.0))
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

    /// Of the elements of both, `upper` having as many; `half` is that of their counts.
    #[inline(always)]
    pub fn with_as_many(self, upper: Self, half: f32) -> Self {
        Self { m2: upper.m2 + self.m2, ..self }.doubled([self.mean, upper.mean], half)
    }

    /// That of the lane `distance` above, whose count is `count`.
    #[inline(always)]
    pub fn above(self, distance: u32, count: f32) -> Self {
        let down = |value| warp::shuffle_down(warp::ALL, value, distance);
        Self { mean: down(self.mean), m2: down(self.m2), count }
    }

    /// With those of the lanes up to `distance` above, each of which has seen as many elements, one at least: the result
    /// of the lanes that have so many above them. No count is exchanged; `half` is that of the count.
    #[inline(always)]
    pub fn reduce_even_from(self, mut distance: u32, half: f32) -> Self {
        let mut all = self;
        while distance > 0 {
            all = all.with_as_many(all.above(distance, all.count), half);
            distance /= 2;
        }
        all
    }

    /// One step of two folds at once: lanes without `bit` go on with `self`, those with it with `other`.
    #[inline(always)]
    pub fn reduce_even_with(self, other: Self, bit: u32) -> Self {
        let is_upper = warp::lane() & bit != 0;
        let (kept, sent) = if is_upper { (other, self) } else { (self, other) };
        let across = |value| warp::shuffle_xor(warp::ALL, value, bit);
        let (mean, m2) = (across(sent.mean), across(sent.m2));
        let means = if is_upper { [mean, kept.mean] } else { [kept.mean, mean] };
        Self { m2: m2 + kept.m2, ..kept }.doubled(means, kept.half())
    }
}
