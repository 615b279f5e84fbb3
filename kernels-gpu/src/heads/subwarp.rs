//! The lanes of a warp that share a head.
use cuda_std::prelude::*;

/// The lanes of a warp that share a head: `width` of them, 16 or 32.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    /// The lane's number in the group.
    pub rank: u32,
    /// The group's first lane.
    pub base: u32,
    pub width: u32,
}

impl Group {
    /// The value of the group's lane `rank`.
    #[inline(always)]
    pub fn from(&self, rank: u32, value: f32) -> f32 {
        warp::shuffle(warp::ALL, value, self.base + rank)
    }

    /// Every value through the steps of a fold over the group, from the longest distance; all values take a
    /// step together, which hides its latency.
    #[inline(always)]
    pub fn reduce<V: Copy, const N: usize>(&self, values: [V; N], step: impl Fn(V, u32) -> V) -> [V; N] {
        let all = |values: [V; N], distance: u32| values.map(|value| step(value, distance));
        let wide = if self.width > 16 { all(values, 16) } else { values };
        all(all(all(all(wide, 8), 4), 2), 1)
    }

    /// The sum of each value over the group, the same bits in each of its lanes.
    #[inline(always)]
    pub fn sum<const N: usize>(&self, values: [f32; N]) -> [f32; N] {
        self.reduce(values, |sum, distance| sum + warp::shuffle_xor(warp::ALL, sum, distance))
    }

    /// torch's sum of a row of fewer than 128 columns, over a warp whose threads hold every 32nd: first the
    /// columns of a thread, from the lowest, then threads 16, 8, 4, 2 and 1 apart. A lane has four of those
    /// threads, every eighth the same.
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
        // Here and now, or the sums of several heads wait for each other in registers.
        let [a, b, c, d] = Vec4::<f32>::from_lanes(sums).opaque_lanes().lanes();
        (a + c) + (b + d)
    }
}
