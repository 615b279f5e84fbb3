//! Reductions of a row by a team (the threads that share the row), in the summation order of torch.
//!
//! torch's kernels for LayerNorm and `torch.nn.RMSNorm` use four warps per row. The reductions for these
//! norms use a team of four warps, whose threads add the same elements as torch's threads. If a model
//! computes RMSNorm with `x.float().pow(2).mean(-1)`, torch uses one warp per row. The team then is one warp.
//!
//! Kernels in which a warp processes several heads do not use the trait [`TeamMoments`]. These kernels call
//! [`Welford::reduce_step`] and [`Welford::stats`] directly.
use cuda_std::math::reciprocal;
use cuda_std::prelude::*;

use super::stats::Stats;
use super::welford::Welford;

/// The number of columns of a row, by which a sum is divided to obtain a mean.
#[derive(Clone, Copy)]
pub(crate) struct TeamCols {
    pub count: f32,
    /// `1 / count`.
    pub inv: f32,
    /// `true` if the number of columns is a multiple of 4. This property selects the formula with which torch
    /// merges the means of two threads: see [`Welford::with`].
    pub by_fours: bool,
}

impl TeamCols {
    /// Returns `sum / count`, rounded to nearest.
    ///
    /// If `count` is a power of two, a multiplication by `1 / count` gives the same result in fewer
    /// instructions.
    #[inline(always)]
    pub fn divide(self, sum: f32) -> f32 {
        let power_of_two = self.count.to_bits() & 0x7f_ffff == 0;
        if power_of_two { sum * self.inv } else { sum / self.count }
    }
}

/// The accumulators of one thread for a reduction of a row by a team (the threads that share the row).
pub(crate) trait TeamMoments: Copy {
    /// Number of vec4s (four columns each) per thread whose loads are in flight together, at most [`MAX`].
    const IN_FLIGHT: usize;
    /// The accumulators before the first element.
    const EMPTY: Self;
    /// Adds the first `count` of the four values in `lanes`. The other values are zero.
    fn push(&mut self, lanes: [f32; 4], count: u32);
    /// Reduces over the team (the threads that share a row). All threads of the block call this method, and
    /// all get the result of their team.
    fn finish(self, team: Team, memory: &mut SharedMemory, cols: TeamCols, eps: f32) -> Stats;
}

/// The maximum of [`TeamMoments::IN_FLIGHT`].
pub(crate) const MAX: usize = 8;

impl Welford {
    /// Merges the calling lane's moments (mean, sum of squared differences, number of elements) with those of
    /// the lane whose index is higher by `distance`.
    #[inline(always)]
    pub(crate) fn reduce_step(self, distance: u32, by_fours: bool) -> Self {
        let down = |value| warp::shuffle_down(warp::ALL, value, distance);
        self.with(Self { mean: down(self.mean), m2: down(self.m2), count: down(self.count) }, by_fours)
    }

    /// Returns the statistics of a row of `cols` columns. `self` contains the mean and the sum of squared
    /// differences of the whole row.
    #[inline(always)]
    pub(crate) fn stats(self, cols: TeamCols, eps: f32) -> Stats {
        Stats { mean: self.mean, inv: rsqrt(self.m2 / cols.count + eps) }
    }
}

/// LayerNorm, by a team of four warps that share a row. If the team has only one warp, the reduction treats
/// the three missing warps as warps without elements.
impl TeamMoments for Welford {
    const IN_FLIGHT: usize = 4;
    const EMPTY: Self = Self::EMPTY;

    #[inline(always)]
    fn push(&mut self, lanes: [f32; 4], count: u32) {
        for i in 0..4 {
            if (i as u32) < count {
                self.count += 1.0;
                self.add(lanes[i], reciprocal(self.count));
            }
        }
    }

    #[inline(always)]
    fn finish(self, team: Team, memory: &mut SharedMemory, cols: TeamCols, eps: f32) -> Stats {
        let mut reduced = self;
        let mut distance = warp::SIZE / 2;
        while distance > 0 {
            reduced = reduced.reduce_step(distance, cols.by_fours);
            distance /= 2;
        }
        let [mean, m2, count] = warps_of(team, memory, [reduced.mean, reduced.m2, reduced.count]);
        let warp = |i: usize| Self { mean: mean[i], m2: m2[i], count: count[i] };
        let both = |lower: Self, upper| lower.with(upper, cols.by_fours);
        both(both(warp(0), warp(2)), both(warp(1), warp(3))).stats(cols, eps)
    }
}

/// RMSNorm: sum of squares in the order of torch's fused kernel (`torch.nn.RMSNorm`), by a team (threads that
/// share a row) of four warps.
#[derive(Clone, Copy)]
pub(crate) struct FusedRms(f32);

impl TeamMoments for FusedRms {
    const IN_FLIGHT: usize = 4;
    const EMPTY: Self = Self(0.0);

    #[inline(always)]
    fn push(&mut self, lanes: [f32; 4], _: u32) {
        for i in 0..4 {
            self.0 = fma(lanes[i], lanes[i], self.0);
        }
    }

    #[inline(always)]
    fn finish(self, team: Team, memory: &mut SharedMemory, cols: TeamCols, eps: f32) -> Stats {
        let [sum] = warps_of(team, memory, [warp::sum(self.0, warp::SIZE)]);
        let all = (sum[0] + sum[2]) + (sum[1] + sum[3]);
        Stats { mean: 0.0, inv: rsqrt(all / cols.count + eps) }
    }
}

/// RMSNorm: sum of squares in the order of `x.float().pow(2).mean(-1)`, by a team (threads that share a row)
/// of one warp.
#[derive(Clone, Copy)]
pub(crate) struct TeamMeanSquare([f32; 4]);

impl TeamMoments for TeamMeanSquare {
    const IN_FLIGHT: usize = MAX;
    const EMPTY: Self = Self([0.0; 4]);

    #[inline(always)]
    fn push(&mut self, lanes: [f32; 4], _: u32) {
        for i in 0..4 {
            self.0[i] += lanes[i] * lanes[i];
        }
    }

    #[inline(always)]
    fn finish(self, _: Team, _: &mut SharedMemory, cols: TeamCols, eps: f32) -> Stats {
        let [a, b, c, d] = self.0;
        let sum = warp::sum(a + b + c + d, warp::SIZE);
        Stats { mean: 0.0, inv: rsqrt(sum * cols.inv + eps) }
    }
}

/// Broadcasts `values` from lane 0 of each of the team's four warps to all threads of the team. A team is the
/// set of threads that share a row. `result[i][w]` is `values[i]` of warp `w`.
///
/// If the team has only one warp, the values of the other three warps are 0.
#[inline(always)]
fn warps_of<const N: usize>(team: Team, memory: &mut SharedMemory, values: [f32; N]) -> [[f32; 4]; N] {
    let mut found = [[0.0; 4]; N];
    if team.size <= warp::SIZE {
        for value in 0..N {
            found[value][0] = warp::shuffle(warp::ALL, values[value], 0);
        }
        return found;
    }
    let [_, teams, _] = thread::block_dim();
    let partial = memory.take::<f32>(teams * 4 * N as u32);
    let slot = |warp: u32, value: usize| (thread::index()[1] * 4 + warp) * N as u32 + value as u32;
    if warp::lane() == 0 {
        for value in 0..N {
            // SAFETY: the store writes a slot of `partial`, which has one slot per warp and value. Only lane
            // 0 of the warp writes the slots of the warp, before the barrier.
            unsafe { partial.set(slot(team.rank / warp::SIZE, value), values[value]) };
        }
    }
    block::sync();
    for value in 0..N {
        for warp in 0..4 {
            // SAFETY: the load reads a slot of one of the team's four warps. A team is the set of threads
            // that share a row. Lane 0 of each warp wrote its slots before the barrier.
            found[value][warp] = unsafe { partial.get(slot(warp as u32, value)) };
        }
    }
    found
}
