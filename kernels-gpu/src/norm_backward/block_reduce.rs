//! Sums over the rows of a block, all of them made in one exchange, and what they say of a row.
use cuda_std::prelude::*;

/// Values of a row.
pub(super) const OF_ROW: usize = 4;

/// The most values of a fold.
pub(super) const MAX_ROWS: usize = 8;

/// One fold after another over a block that is one team of whole warps: in two parts of shared memory by
/// turns, so that no warp writes what another may still be reading.
pub(super) struct BlockReduction {
    second: bool,
}

impl BlockReduction {
    /// The first.
    pub const FIRST: Self = Self { second: false };

    /// Floats of a part.
    #[inline(always)]
    fn split() -> u32 {
        thread::block_dim()[0] / warp::SIZE * MAX_ROWS as u32
    }

    /// The sums over the block of the first `count` values, a power of two.
    #[inline(always)]
    pub fn sums(&mut self, values: [f32; MAX_ROWS], count: u32) -> [f32; MAX_ROWS] {
        let mut memory = SharedMemory::of_launch();
        memory.take::<f32>(if self.second { Self::split() } else { 0 });
        self.second = !self.second;
        let partial = memory.take::<f32>(Self::split());
        let (lane, own) = (warp::lane(), sums_of_lanes(values, count));
        if lane < count {
            // SAFETY: a slot for each warp and value, which one lane writes before the barrier.
            unsafe { partial.set(thread::index()[0] / warp::SIZE * count + lane, own) };
        }
        block::sync();
        let (mut sum, mut slot) = (0.0, lane);
        // A loop, in which ptxas forgets what was computed before: unrolled it keeps the lanes of all packs,
        // and spills.
        while slot < thread::block_dim()[0] / warp::SIZE * count {
            // SAFETY: written before the barrier.
            sum += unsafe { partial.get(slot) };
            slot += warp::SIZE;
        }
        let mut distance = warp::SIZE / 2;
        while distance >= count {
            sum += warp::shuffle_xor(warp::ALL, sum, distance);
            distance /= 2;
        }
        let mut sums = [0.0; MAX_ROWS];
        for i in 0..count {
            sums[i as usize] = warp::shuffle(warp::ALL, sum, i);
        }
        sums
    }
}

/// The sum over the warp of value `lane % count`: at each step a lane gives away those of its values that its
/// partner goes on with, so that `count` values take little more than the shuffles of one.
#[inline(always)]
fn sums_of_lanes(mut values: [f32; MAX_ROWS], count: u32) -> f32 {
    let mut left = count;
    while left > 1 {
        left /= 2;
        let is_upper = warp::lane() & left != 0;
        for i in 0..left as usize {
            let [low, high] = [values[i], values[i + left as usize]];
            let (kept, sent) = if is_upper { (high, low) } else { (low, high) };
            values[i] = kept + warp::shuffle_xor(warp::ALL, sent, left);
        }
    }
    let (mut sum, mut distance) = (values[0], count);
    while distance < warp::SIZE {
        sum += warp::shuffle_xor(warp::ALL, sum, distance);
        distance *= 2;
    }
    sum
}

/// What a row's sums say.
#[derive(Clone, Copy)]
pub(super) struct BlockMoments {
    /// `r`; and what `x * r` is less to be `d * r`.
    inv_rms: f32,
    base: f32,
    /// `r * mean(g)`, negative.
    offset: f32,
    /// `r * mean(g * d * r)`.
    slope: f32,
}

impl BlockMoments {
    /// From the means over a row; all zero where there is none.
    #[inline(always)]
    pub fn of([mean, offset, squares, products]: [f32; OF_ROW], shift: f32, exists: bool, eps: f32) -> Self {
        let inv_rms = if exists { rsqrt(fma(-mean, mean, squares) + eps) } else { 0.0 };
        Self {
            inv_rms,
            base: -(shift + mean) * inv_rms,
            offset: -offset * inv_rms,
            slope: fma(-mean, offset, products) * inv_rms * inv_rms,
        }
    }

    /// `d * r`.
    #[inline(always)]
    pub fn xhat<L: F32Vec>(&self, x: L) -> L {
        x.map(|x| fma(x, self.inv_rms, self.base))
    }

    /// `dx`.
    #[inline(always)]
    pub fn dx<L: F32Vec>(&self, g: L, xhat: L) -> L {
        let g = g.map(|g| fma(g, self.inv_rms, self.offset));
        g.zip(xhat, |g, xhat| fma(-xhat, self.slope, g))
    }
}
