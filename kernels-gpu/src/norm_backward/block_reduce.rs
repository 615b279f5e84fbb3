//! A block reduction that computes several sums at once. The backward kernels of the norms derive the
//! statistics of a row from these sums.
//!
//! The comments use three abbreviations: `d` is `x - mean(x)`, `r` is `1 / sqrt(mean(d^2) + eps)`, and `g` is
//! `dy * (offset + w)`. `w` is the weight, and `offset` is a constant.
use cuda_std::prelude::*;

/// Number of sums per row that the reduction computes. Divided by the number of columns, these sums are the
/// argument of [`BlockMoments::of`].
pub(super) const OF_ROW: usize = 4;

/// The maximum number of values per thread in one reduction: [`OF_ROW`] values for each of two rows.
pub(super) const MAX_ROWS: usize = 8;

/// A sequence of reductions over all threads of a block. The number of threads per block is a multiple of 32.
///
/// Consecutive reductions alternate between two regions of shared memory, so that no warp overwrites a value
/// that another warp still reads.
pub(super) struct BlockReduction {
    second: bool,
}

impl BlockReduction {
    /// The state before the first reduction of the block.
    pub const FIRST: Self = Self { second: false };

    /// Returns the number of f32 values in each of the two regions of shared memory.
    #[inline(always)]
    fn split() -> u32 {
        thread::block_dim()[0] / warp::SIZE * MAX_ROWS as u32
    }

    /// Adds each of the first `count` elements of `values` over all threads of the block. Every thread gets
    /// all `count` sums. `count` is a power of two.
    #[inline(always)]
    pub fn sums(&mut self, values: [f32; MAX_ROWS], count: u32) -> [f32; MAX_ROWS] {
        let mut memory = SharedMemory::of_launch();
        memory.take::<f32>(if self.second { Self::split() } else { 0 });
        self.second = !self.second;
        let partial = memory.take::<f32>(Self::split());
        let (lane, own) = (warp::lane(), sums_of_lanes(values, count));
        if lane < count {
            // SAFETY: the store writes a slot of shared memory. Each warp has one slot for each value, and
            // only lane `i` of the warp writes the slot of value `i`. All reads come after the barrier.
            unsafe { partial.set(thread::index()[0] / warp::SIZE * count + lane, own) };
        }
        block::sync();
        let (mut sum, mut slot) = (0.0, lane);
        // Do not unroll this loop. If the loop is unrolled, ptxas keeps the f32 elements of all packs
        // (16-byte vectors) in registers, and spills registers.
        while slot < thread::block_dim()[0] / warp::SIZE * count {
            // SAFETY: the load reads slot number `slot`, which is below the loop bound. The warps of the
            // block wrote all slots below this bound before the barrier.
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

/// Adds each of the first `count` elements of `values` over all lanes of the warp. The lane with index `lane`
/// gets one of the `count` sums: the sum of element number `lane % count`.
///
/// In each step, a lane keeps half of its values and sends the other half to another lane. The reduction of
/// `count` values therefore takes only a few more shuffles than the reduction of one value.
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

/// The statistics of a row that its gradients depend on.
#[derive(Clone, Copy)]
pub(super) struct BlockMoments {
    /// `r = 1 / sqrt(mean(d^2) + eps)`, with `d = x - mean(x)`.
    inv_rms: f32,
    /// `-mean(x) * r`. The normalized element `(x - mean(x)) * r` equals `x * r + base`.
    base: f32,
    /// `-r * mean(g)`, with `g = dy * (offset + w)`.
    offset: f32,
    /// `r * mean(g * d * r)`, with `g = dy * (offset + w)`, `d = x - mean(x)` and `r = 1 / sqrt(mean(d^2) +
    /// eps)`.
    slope: f32,
}

impl BlockMoments {
    /// Computes the statistics of a row from the means of `x - shift`, `g`, `(x - shift)^2` and `g * (x -
    /// shift)` over the row. `shift` is an estimate of the mean of `x`, and `g` is `dy * (offset + w)`. If
    /// `exists` is false, the row does not exist, and all statistics are zero.
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

    /// Returns the normalized elements `d * r`, with `d = x - mean(x)` and `r = 1 / sqrt(mean(d^2) + eps)`.
    #[inline(always)]
    pub fn xhat<L: F32Vec>(&self, x: L) -> L {
        x.map(|x| fma(x, self.inv_rms, self.base))
    }

    /// Returns `dx` in f32, without a second gradient `dsum`, which the caller adds if there is one.
    #[inline(always)]
    pub fn dx<L: F32Vec>(&self, g: L, xhat: L) -> L {
        let g = g.map(|g| fma(g, self.inv_rms, self.offset));
        g.zip(xhat, |g, xhat| fma(-xhat, self.slope, g))
    }
}
