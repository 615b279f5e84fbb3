//! What a norm knows of its row, reduced in the order of torch's CUDA kernels, so that the bits are theirs.
//!
//! The orders are those of torch 2.11: `LayerNorm` and `FusedRms` of aten's `layer_norm_kernel.cu` (vectorised kernel: a
//! block of 128 threads a row), `MeanSquare` of `Reduce.cuh` for the mean of an f32 tensor over its last dimension (a
//! warp a row). Quads have torch's mapping of columns to threads. For rows that torch would not vectorise (columns not
//! divisible by 4) torch takes another order; these keep theirs.
use cuda_std::math::reciprocal;
use cuda_std::prelude::*;

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
}

/// A reduction of a row.
pub(crate) trait Moments: Copy {
    /// Quads whose loads are in flight together.
    const IN_FLIGHT: usize;
    /// Of no element.
    const EMPTY: Self;
    /// Takes in the first `count` lanes.
    fn push(&mut self, lanes: [f32; 4], count: u32);
    /// Reduces over the team. Every thread of the block calls it, and gets the result.
    fn finish(self, team: Team, memory: &mut SharedMemory, cols: Cols, eps: f32) -> Stats;
}

/// Mean and sum of squared differences by Welford's method: LayerNorm.
#[derive(Clone, Copy)]
pub(crate) struct LayerNorm {
    mean: f32,
    m2: f32,
    count: f32,
}

impl LayerNorm {
    #[inline(always)]
    fn add(&mut self, x: f32) {
        let delta = x - self.mean;
        self.count += 1.0;
        self.mean = fma(delta, reciprocal(self.count), self.mean);
        self.m2 = fma(delta, x - self.mean, self.m2);
    }

    /// Of the elements of both, `self` being the lower thread's.
    #[inline(always)]
    pub(crate) fn combine(self, upper: Self) -> Self {
        let count = self.count + upper.count;
        if count <= 0.0 {
            return Self::EMPTY;
        }
        let coefficient = reciprocal(count);
        let delta = self.mean - upper.mean;
        let (own, theirs) = (self.count * coefficient, upper.count * coefficient);
        Self {
            mean: fma(upper.mean, theirs, own * self.mean),
            m2: fma(own, upper.count * (delta * delta), upper.m2 + self.m2),
            count,
        }
    }

    /// With what the lane `distance` above has.
    #[inline(always)]
    pub(crate) fn fold_step(self, distance: u32) -> Self {
        let down = |value| warp::shuffle_down(warp::ALL, value, distance);
        self.combine(Self { mean: down(self.mean), m2: down(self.m2), count: down(self.count) })
    }

    /// What a row of `cols` columns is normalised with, of which this is all.
    #[inline(always)]
    pub(crate) fn stats(self, cols: Cols, eps: f32) -> Stats {
        Stats { mean: self.mean, inv: rsqrt(self.m2 / cols.count + eps) }
    }
}

impl Moments for LayerNorm {
    const IN_FLIGHT: usize = 4;
    const EMPTY: Self = Self { mean: 0.0, m2: 0.0, count: 0.0 };

    #[inline(always)]
    fn push(&mut self, lanes: [f32; 4], count: u32) {
        for i in 0..4 {
            if (i as u32) < count {
                self.add(lanes[i]);
            }
        }
    }

    #[inline(always)]
    fn finish(self, team: Team, memory: &mut SharedMemory, cols: Cols, eps: f32) -> Stats {
        let mut folded = self;
        let mut distance = warp::SIZE / 2;
        while distance > 0 {
            folded = folded.fold_step(distance);
            distance /= 2;
        }
        let [mean, m2, count] = warps_of(team, memory, [folded.mean, folded.m2, folded.count]);
        let warp = |i: usize| Self { mean: mean[i], m2: m2[i], count: count[i] };
        let all = warp(0).combine(warp(2)).combine(warp(1).combine(warp(3)));
        all.stats(cols, eps)
    }
}

/// Sum of squares in the order of torch's fused RMSNorm: `torch.nn.RMSNorm`.
#[derive(Clone, Copy)]
pub(crate) struct FusedRms(f32);

impl Moments for FusedRms {
    const IN_FLIGHT: usize = 4;
    const EMPTY: Self = Self(0.0);

    #[inline(always)]
    fn push(&mut self, lanes: [f32; 4], _: u32) {
        for x in lanes {
            self.0 = fma(x, x, self.0);
        }
    }

    #[inline(always)]
    fn finish(self, team: Team, memory: &mut SharedMemory, cols: Cols, eps: f32) -> Stats {
        let [sum] = warps_of(team, memory, [warp::sum(self.0, warp::SIZE)]);
        let all = (sum[0] + sum[2]) + (sum[1] + sum[3]);
        Stats { mean: 0.0, inv: rsqrt(all / cols.count + eps) }
    }
}

/// Sum of squares in the order of `x.float().pow(2).mean(-1)`: the RMSNorms that models write out. A warp a row.
#[derive(Clone, Copy)]
pub(crate) struct MeanSquare([f32; 4]);

impl Moments for MeanSquare {
    const IN_FLIGHT: usize = 8;
    const EMPTY: Self = Self([0.0; 4]);

    #[inline(always)]
    fn push(&mut self, lanes: [f32; 4], _: u32) {
        for i in 0..4 {
            self.0[i] += lanes[i] * lanes[i];
        }
    }

    #[inline(always)]
    fn finish(self, _: Team, _: &mut SharedMemory, cols: Cols, eps: f32) -> Stats {
        let [a, b, c, d] = self.0;
        let sum = warp::sum(a + b + c + d, warp::SIZE);
        Stats { mean: 0.0, inv: rsqrt(sum * cols.inv + eps) }
    }
}

/// The values of lane 0 of the team's four warps, in every thread; a team of one warp stands beside three empty ones.
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
            // SAFETY: a slot for each warp and value; only lane 0 writes its warp's, before the barrier.
            unsafe { partial.set(slot(team.rank / warp::SIZE, value), values[value]) };
        }
    }
    block::sync();
    for value in 0..N {
        for warp in 0..4 {
            // SAFETY: every slot was written before the barrier.
            found[value][warp] = unsafe { partial.get(slot(warp as u32, value)) };
        }
    }
    found
}
