//! Welford's algorithm: mean and sum of squared differences (`m2`), per thread and per warp, for LayerNorm.
use cuda_std::math::reciprocal;
use cuda_std::prelude::*;
use cuda_std::vec4::{LEN, MAX_IN_REGISTERS};

/// The reciprocals of 1 to `4 * MAX_IN_REGISTERS`, as constants in groups of four. These constants have the
/// same bits as the results of the function [`reciprocal`].
///
/// A thread adds the elements of its vec4s (four columns each) in order. After element `i` of vec4 number
/// `nth`, it has added `4 * nth + i + 1` elements. `INVERSES[nth][i]` is the reciprocal of this number.
const INVERSES: [[f32; 4]; MAX_IN_REGISTERS] = {
    let (mut inverses, mut at) = ([[0.0; 4]; MAX_IN_REGISTERS], 0);
    while at < 4 * MAX_IN_REGISTERS {
        inverses[at / 4][at % 4] = 1.0 / (at + 1) as f32;
        at += 1;
    }
    inverses
};

/// Mean, sum of squared differences and count of a subset of a row's elements.
#[derive(Clone, Copy)]
pub(crate) struct Welford {
    pub mean: f32,
    pub m2: f32,
    pub count: f32,
}

impl Welford {
    /// The moments of the empty set.
    pub const EMPTY: Self = Self { mean: 0.0, m2: 0.0, count: 0.0 };

    /// Adds the element `x`. `inv_count` is the reciprocal of the number of elements, including `x`. The
    /// caller must update the field `count`.
    #[inline(always)]
    pub fn add(&mut self, x: f32, inv_count: f32) {
        let delta = x - self.mean;
        self.mean = fma(delta, inv_count, self.mean);
        self.m2 = fma(delta, x - self.mean, self.m2);
    }

    /// Merges the means, and the sums of squared differences (`m2`), of two disjoint sets of elements. `self`
    /// is from the thread or warp with the lower index, and `upper` is from the thread or warp with the
    /// higher index.
    ///
    /// torch has two kernels, which compute the merged mean with different formulas. If the number of columns
    /// is divisible by 4 (`by_fours`), torch uses its vectorised kernel, which computes the weighted sum of
    /// both means. This sum can have a rounding error even if both means are equal. For other numbers of
    /// columns, torch's second kernel adds a fraction of the difference of the means to `self.mean`. If both
    /// means are equal, the result is exact, so a constant row has a variance of exactly 0.
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
        // `upper` may be empty, with a count of 0, while `delta * delta` may be infinite. The product of 0
        // and infinity would be NaN.
        let between = if upper.count > 0.0 { upper.count * (delta * delta) } else { 0.0 };
        Self { mean: fma(-delta, theirs, self.mean), m2: fma(warp_tile, between, upper.m2 + self.m2), count }
    }

    /// Adds the thread's vec4 (four columns) number `nth`. After loop unrolling, `nth` is a compile-time
    /// constant, so the reciprocals of the counts are constants too.
    #[inline(always)]
    pub fn add_vec4(&mut self, nth: u32, lanes: [f32; 4]) {
        for i in 0..4 {
            self.add(lanes[i], INVERSES[nth as usize][i]);
        }
        self.count = (LEN * (nth + 1)) as f32;
    }

    /// Returns `count * reciprocal(2 * count)`. This value is the weight of each mean if two sets of `count`
    /// elements are merged. The weight can differ from 0.5, because the reciprocal is rounded.
    ///
    /// Each merge doubles the count. The rounded reciprocal of twice a number is exactly half the rounded
    /// reciprocal of the number, so the weight keeps its bits. One weight therefore serves all merge steps.
    #[inline(always)]
    pub fn half(&self) -> f32 {
        self.count * reciprocal(self.count * 2.0)
    }

    /// Returns the same weight as [`Welford::half`]. The count must be a constant, so that the compiler can
    /// evaluate the division.
    #[inline(always)]
    pub fn known_half(&self) -> f32 {
        self.count * (1.0 / (self.count * 2.0))
    }

    /// Merges two sets with the same count. `lower` and `upper` are the means of the two sets. `self.m2`
    /// already contains the sum of the two sums of squared differences. `self.count` is the count of one set.
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

    /// Merges `self` with `upper`, which has the same count. `half` is the result of [`Welford::half`] for
    /// this count.
    #[inline(always)]
    pub fn with_as_many(self, upper: Self, half: f32) -> Self {
        Self { m2: upper.m2 + self.m2, ..self }.doubled([self.mean, upper.mean], half)
    }

    /// Returns the moments of the lane whose index is higher by `distance`: its mean and its sum of squared
    /// differences (`m2`). `count` is the number of elements of that lane.
    #[inline(always)]
    pub fn above(self, distance: u32, count: f32) -> Self {
        let down = |value| warp::shuffle_down(warp::ALL, value, distance);
        Self { mean: down(self.mean), m2: down(self.m2), count }
    }

    /// Reduces over the `2 * distance` lanes from the calling lane on, in steps that halve the distance.
    ///
    /// All lanes have the same count, at least 1, so no count is exchanged. `half` is the result of
    /// [`Welford::half`] for this count. The result is valid only in lanes `l` for which lane
    /// `l + 2 * distance - 1` exists.
    #[inline(always)]
    pub fn reduce_even_from(self, mut distance: u32, half: f32) -> Self {
        let mut all = self;
        while distance > 0 {
            all = all.with_as_many(all.above(distance, all.count), half);
            distance /= 2;
        }
        all
    }

    /// Performs one step of two warp reductions at once. Afterwards, lanes whose index has `bit` clear have
    /// partial results of the reduction of `self`. Lanes whose index has `bit` set have partial results of
    /// the reduction of `other`.
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
