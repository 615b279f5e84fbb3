//! [`reduce::warp`](super::warp) of a row that the four warps of a block share, in the same order, so with
//! the same bits.
use cuda_std::math::reciprocal;
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, LEN, TILE, tiles_in_registers};

use super::stats::Stats;
use super::welford::Welford;

/// Threads of a row.
pub(crate) const THREADS: u32 = 128;
/// Warps of a row.
pub(crate) const WARPS: u32 = THREADS / warp::SIZE;

/// The row as its block sees it.
#[derive(Clone, Copy)]
pub(crate) struct BlockRow<T> {
    /// Where it waits, if it does.
    pub staged: SharedRow<T>,
    /// Tiles of the row, all of them full.
    pub tiles: u32,
    /// The warp's number among those of the row.
    pub warp: u32,
}

/// A reduction of a row by the threads of a block.
pub(crate) trait PartMoments: Copy {
    /// Of no element.
    const EMPTY: Self;
    /// Does it read the row where it waits?
    const READS: bool;
    /// Takes in a quad of the thread's, in the order of its tiles.
    fn push(&mut self, lanes: [f32; 4]);
    /// The same, the quad's number being known when the kernel is compiled.
    fn push_vec4(&mut self, nth: u32, lanes: [f32; 4]);
    /// Reduces over the block, whose threads all call it once and get the result. `cols` and its reciprocal
    /// are what is divided by.
    fn finish<T: Elem, A: Access>(
        self,
        row: BlockRow<T>,
        reduction_scratch: Shared<f32>,
        cols: [f32; 2],
        eps: f32,
    ) -> Stats;
}

/// LayerNorm: each warp plays one of torch's.
impl PartMoments for Welford {
    const EMPTY: Self = Self::EMPTY;
    const READS: bool = false;

    #[inline(always)]
    fn push(&mut self, lanes: [f32; 4]) {
        for i in 0..4 {
            self.count += 1.0;
            self.add(lanes[i], reciprocal(self.count));
        }
    }

    #[inline(always)]
    fn push_vec4(&mut self, nth: u32, lanes: [f32; 4]) {
        self.add_vec4(nth, lanes);
    }

    #[inline(always)]
    fn finish<T: Elem, A: Access>(
        self,
        row: BlockRow<T>,
        reduction_scratch: Shared<f32>,
        [cols, _]: [f32; 2],
        eps: f32,
    ) -> Stats {
        // Of a row that is held every thread has as many, a number that is known when the kernel is compiled.
        let even = tiles_in_registers::<A>() > 0;
        let half = if even { self.known_half() } else { self.half() };
        let Self { mean, m2, .. } = self.reduce_even_from(warp::SIZE / 2, half);
        let at = 2 * row.warp;
        if warp::lane() == 0 {
            // SAFETY: a place for each warp and value, which only its lane 0 writes, before the barrier.
            unsafe {
                reduction_scratch.set(at, mean);
                reduction_scratch.set(at + 1, m2);
            }
        }
        block::sync();
        let warp = |number: u32| {
            let tiles = if even {
                tiles_in_registers::<A>() as u32
            } else {
                (row.tiles + WARPS - 1 - number) / WARPS
            };
            // SAFETY: every place was written before the barrier.
            let [mean, m2] =
                unsafe { [reduction_scratch.get(2 * number), reduction_scratch.get(2 * number + 1)] };
            Self { mean, m2, count: (tiles * TILE) as f32 }
        };
        let both =
            |lower: Self, upper| if even { lower.with_as_many(upper, half) } else { lower.with(upper, true) };
        let all = both(both(warp(0), warp(2)), both(warp(1), warp(3)));
        Stats { mean: all.mean, inv: rsqrt(all.m2 / cols + eps) }
    }
}

/// RMSNorm: a thread has every 128th element, as a lane of the warp that would have the row alone has it in
/// one of its four sums.
#[derive(Clone, Copy)]
pub(crate) struct Squares;

impl PartMoments for Squares {
    const EMPTY: Self = Self;
    const READS: bool = true;

    #[inline(always)]
    fn push(&mut self, _: [f32; 4]) {}

    #[inline(always)]
    fn push_vec4(&mut self, _: u32, _: [f32; 4]) {}

    #[inline(always)]
    fn finish<T: Elem, A: Access>(
        self,
        row: BlockRow<T>,
        reduction_scratch: Shared<f32>,
        [_, inv_cols]: [f32; 2],
        eps: f32,
    ) -> Stats {
        block::sync();
        let warp_tile = thread::index()[0];
        let mut sum = 0.0;
        let mut add = |tile: u32| {
            let group = [0, 1, 2, 3].map(|i: u32| {
                if tiles_in_registers::<A>() > 0 || tile + i < row.tiles {
                    row.staged.element(warp_tile + (tile + i) * TILE).to_f32()
                } else {
                    0.0
                }
            });
            for i in 0..4 {
                sum += group[i] * group[i];
            }
        };
        if tiles_in_registers::<A>() > 0 {
            for nth in 0..tiles_in_registers::<A>() as u32 {
                add(nth * WARPS);
            }
        } else {
            for nth in 0..row.tiles.div_ceil(WARPS) {
                add(nth * WARPS);
            }
        }
        // SAFETY: a place for each thread.
        unsafe { reduction_scratch.set(warp_tile, sum) };
        block::sync();
        let first = LEN * warp::lane();
        // SAFETY: every place was written before the barrier.
        let [a, b, c, d] = [0, 1, 2, 3].map(|i: u32| unsafe { reduction_scratch.get(first + i) });
        let sum = warp::sum(a + b + c + d, warp::SIZE);
        Stats { mean: 0.0, inv: rsqrt(sum * inv_cols + eps) }
    }
}
