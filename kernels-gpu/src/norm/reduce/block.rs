//! Reductions of a row by the four warps of a block.
//!
//! These reductions add in the same order as the reductions by one warp ([`reduce::warp`](super::warp)). Both
//! kinds of reduction therefore return the same bits.
use cuda_std::math::reciprocal;
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, LEN, TILE, tiles_in_registers};

use super::stats::Stats;
use super::welford::Welford;

/// Threads per row.
pub(crate) const THREADS: u32 = 128;
/// Warps per row.
pub(crate) const WARPS: u32 = THREADS / warp::SIZE;

/// The row that the block shares.
#[derive(Clone, Copy)]
pub(crate) struct BlockRow<T> {
    /// The copy of the row in shared memory. The access type (how a thread reads rows) of a kernel decides
    /// whether the kernel makes this copy. Kernels without the copy must not access this field.
    pub staged: SharedRow<T>,
    /// Number of tiles of the row. All tiles are full.
    pub tiles: u32,
    /// The calling warp's index among the warps of the row.
    pub warp: u32,
}

/// The accumulators of one thread for a reduction of a row by the four warps of a block.
pub(crate) trait PartMoments: Copy {
    /// The accumulators before the first element.
    const EMPTY: Self;
    /// `true` if the method `finish` reads the row from shared memory.
    const READS: bool;
    /// Adds the thread's next vec4 (four columns). The thread has one vec4 per tile, and the caller adds the
    /// tiles in ascending order.
    fn push(&mut self, lanes: [f32; 4]);
    /// Adds the thread's `nth` vec4 (four columns). After loop unrolling, `nth` is a compile-time constant.
    fn push_vec4(&mut self, nth: u32, lanes: [f32; 4]);
    /// Reduces over the block. All threads of the block call this method once, and all of these threads get
    /// the result. `cols` contains the number of columns and its reciprocal.
    fn finish<T: Elem, A: Access>(
        self,
        row: BlockRow<T>,
        reduction_scratch: Shared<f32>,
        cols: [f32; 2],
        eps: f32,
    ) -> Stats;
}

/// LayerNorm. Each warp of the block emulates one of the four warps that torch uses per row.
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
        // If the row stays in registers, all threads have added the same number of elements. This number is a
        // compile-time constant.
        let even = tiles_in_registers::<A>() > 0;
        let half = if even { self.known_half() } else { self.half() };
        let Self { mean, m2, .. } = self.reduce_even_from(warp::SIZE / 2, half);
        let at = 2 * row.warp;
        if warp::lane() == 0 {
            // SAFETY: the stores write this warp's two elements of the scratch memory. Only lane 0 of the
            // warp writes these elements, before the barrier.
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
            // SAFETY: the loads read the two elements of warp `number` in the scratch memory. `number` is at
            // most 3. Lane 0 of each warp wrote its two elements before the barrier.
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

/// The reduction of RMSNorm. Thread `t` sums the squares of the elements `t`, `t + 128`, `t + 256`, and so
/// on.
///
/// In the reduction by one warp ([`MeanSquare`](super::warp::MeanSquare)), accumulator `t % 4` of lane
/// `t / 4` sums the same squares in the same order. Both reductions therefore return the same bits.
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
        // SAFETY: the scratch memory has one element per thread of the block, and each thread writes only its
        // element.
        unsafe { reduction_scratch.set(warp_tile, sum) };
        block::sync();
        let first = LEN * warp::lane();
        // SAFETY: the load reads element `first + i` of the scratch memory, and this index is below 128.
        // Every thread wrote its element before the barrier.
        let [a, b, c, d] = [0, 1, 2, 3].map(|i: u32| unsafe { reduction_scratch.get(first + i) });
        let sum = warp::sum(a + b + c + d, warp::SIZE);
        Stats { mean: 0.0, inv: rsqrt(sum * inv_cols + eps) }
    }
}

/// The reduction of `torch.nn.RMSNorm`. Each warp of the block sums the squares that one of the four warps of
/// torch's kernel sums.
#[derive(Clone, Copy)]
pub(crate) struct FusedSquares(f32);

impl PartMoments for FusedSquares {
    const EMPTY: Self = Self(0.0);
    const READS: bool = false;

    #[inline(always)]
    fn push(&mut self, lanes: [f32; 4]) {
        for i in 0..4 {
            self.0 = fma(lanes[i], lanes[i], self.0);
        }
    }

    #[inline(always)]
    fn push_vec4(&mut self, _: u32, lanes: [f32; 4]) {
        self.push(lanes);
    }

    #[inline(always)]
    fn finish<T: Elem, A: Access>(
        self,
        row: BlockRow<T>,
        reduction_scratch: Shared<f32>,
        [cols, _]: [f32; 2],
        eps: f32,
    ) -> Stats {
        let sum = warp::sum(self.0, warp::SIZE);
        if warp::lane() == 0 {
            // SAFETY: the store writes this warp's slot in the scratch memory. Only lane 0 of the warp writes
            // the slot, before the barrier.
            unsafe { reduction_scratch.set(row.warp, sum) };
        }
        block::sync();
        // SAFETY: the loads read the slots of the four warps. Lane 0 of each warp wrote its slot before the
        // barrier.
        let [a, b, c, d] = [0, 1, 2, 3].map(|warp: u32| unsafe { reduction_scratch.get(warp) });
        let sum = (a + c) + (b + d);
        Stats { mean: 0.0, inv: rsqrt(sum / cols + eps) }
    }
}
