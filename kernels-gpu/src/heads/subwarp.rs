//! Shuffles and reductions over the lanes of a warp that share a head.
use cuda_std::prelude::*;

/// The lanes of a warp that share a head: a whole warp, or half a warp.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    /// The index of the calling lane in the group.
    pub rank: u32,
    /// The first lane of the group.
    pub base: u32,
    /// Number of lanes, 16 or 32.
    pub width: u32,
}

impl Group {
    /// Returns the value of lane `rank` of the group.
    #[inline(always)]
    pub fn from(&self, rank: u32, value: f32) -> f32 {
        warp::shuffle(warp::ALL, value, self.base + rank)
    }

    /// Reduces each value over the lanes of the group. `step(value, distance)` combines a lane's value with
    /// the value of the lane whose index differs by `distance`. The distances are 16 (only in a whole warp),
    /// 8, 4, 2 and 1.
    ///
    /// Each step is executed for all values before the next step, to hide the latency of the shuffles.
    #[inline(always)]
    pub fn reduce<V: Copy, const N: usize>(&self, values: [V; N], step: impl Fn(V, u32) -> V) -> [V; N] {
        let all = |values: [V; N], distance: u32| values.map(|value| step(value, distance));
        let wide = if self.width > 16 { all(values, 16) } else { values };
        all(all(all(all(wide, 8), 4), 2), 1)
    }

    /// Returns the sum of each value over the group (the lanes that share a head), with the same bits in all
    /// lanes.
    #[inline(always)]
    pub fn sum<const N: usize>(&self, values: [f32; N]) -> [f32; N] {
        self.reduce(values, |sum, distance| sum + warp::shuffle_xor(warp::ALL, sum, distance))
    }

    /// Returns the sum of `values` over the group (the lanes that share a head), in torch's order for rows of
    /// fewer than 128 columns.
    ///
    /// torch sums such a row with one warp, whose thread `t` has the columns `t`, `t + 32`, and so on. Each
    /// thread adds its columns in ascending order. Then the warp adds the sums of threads whose indices
    /// differ by 16, then by 8, 4, 2 and 1.
    ///
    /// In this kernel, a lane has four adjacent columns, which belong to four torch threads. Lanes whose
    /// ranks are equal modulo 8 have columns of the same four torch threads.
    #[inline(always)]
    pub fn short_sum(&self, values: [f32; 4]) -> f32 {
        let mut sums = [0.0; 4];
        for column in 0..4 {
            let every_eighth = |nth: u32| self.from(self.rank % 8 + 8 * nth, values[column]);
            sums[column] = every_eighth(0) + every_eighth(1);
            if self.width > 16 {
                sums[column] = sums[column] + every_eighth(2) + every_eighth(3);
            }
            sums[column] = warp::sum(sums[column], 8);
        }
        // The optimization barrier `opaque_lanes` makes the compiler finish the sums of this head before it
        // starts the next head. Otherwise, the compiler would interleave the sums of several heads, whose
        // intermediate values would occupy registers at the same time.
        let [a, b, c, d] = Vec4::<f32>::from_lanes(sums).opaque_lanes().lanes();
        (a + c) + (b + d)
    }
}
