//! Softmax over the last dimension, `y[r, c] = exp(x[r, c] - max) / sum`, or its logarithm,
//! `x[r, c] - max - ln(sum)`. `max` is the maximum of the row, and `sum` is the row's sum of `exp(x - max)`.
//!
//! A team (the threads that share a row) computes one row in f32 and rounds each result once. If a row fits
//! in the registers of a block, it is loaded only once. From sm_90 on, a row that fits in the registers of a
//! cluster of eight blocks is also loaded only once.
//!
//! Longer rows are loaded twice. The second pass runs from the end of the row to its start, because the end
//! of the row is still in the cache.
use core::f32::consts::LOG2_E;

use cuda_std::math::{ex2_ftz, lg2};
use cuda_std::prelude::*;

use crate::softmax::online::{ExpSum, SoftmaxParams, exp, ln, logits};

/// Minimum number of blocks (384 threads each) per SM. With a minimum of three, a thread can use 56
/// registers. On Turing, the minimum is two, because an SM runs at most 1024 threads.
const BLOCKS: u32 = if cfg!(all(target_arch = "nvptx64", not(target_feature = "sm_80"))) { 2 } else { 3 };

/// The maximum of a row, and a value derived from the row's sum of exponentials. The method `apply` computes
/// the results of the row from these two values.
#[derive(Clone, Copy)]
struct Finish {
    max: f32,
    /// A value derived from the sum of exponentials `sum`. If the result is the logarithm of the softmax, the
    /// value is `ln(sum)`. Otherwise, the value is `1 / sum` for f32, and `-log2(sum)` for 16-bit types. For
    /// 16-bit types, the method `apply` computes the result as a power of 2, and adds this value to the
    /// exponent.
    ///
    /// For 16-bit types, this exponent has an error of up to 2.5 ulp. The relative error of the result is
    /// then about 2e-6. This error changes only results that are almost half-way between two 16-bit numbers.
    sum: f32,
    log: bool,
}

impl Finish {
    /// Reduces the partial results of the team, the threads that share a row.
    #[inline(always)]
    fn of<T: Elem>(partial: ExpSum, team: Team, p: SoftmaxParams) -> Self {
        let ExpSum { max, sum } = partial.reduce::<T>(team);
        let log = p.log != 0;
        let sum = match size_of::<T>() {
            _ if log => ln(sum),
            2 => -lg2(sum),
            _ => 1.0 / sum,
        };
        Self { max, sum, log }
    }

    #[inline(always)]
    fn apply<T: Elem>(&self, pack: Pack<T>) -> Pack<T> {
        let from_max = pack.lanes().map(|x| x - self.max);
        Pack::from_lanes(if self.log {
            from_max.map(|x| x - self.sum)
        } else if size_of::<T>() == 2 {
            from_max.map(|x| ex2_ftz(fma(x, LOG2_E, self.sum)))
        } else {
            from_max.map(|x| exp::<T>(x) * self.sum)
        })
    }
}

/// Computes the row of the calling team (the threads that share the row). If `IN_REGISTERS` is not 0, each
/// thread keeps its elements of the row in `IN_REGISTERS` packs (16 bytes each). Otherwise each pass loads
/// the row in steps of `STEP` packs per thread.
///
/// # Safety
/// The host checked that `x` and `y` hold `p.rows` rows of `p.cols` elements. If `VECTOR` is true, both allow
/// 16-byte accesses (`Rows::is_vector`). `y` does not overlap `x`.
#[inline(always)]
unsafe fn softmax<T: Elem, const IN_REGISTERS: usize, const STEP: usize, const VECTOR: bool>(
    x: Rows,
    y: Rows,
    p: SoftmaxParams,
    team: Team,
) {
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: the kernel reads `x` and writes `y`. The host checked the rows of both. No thread outside of
    // the calling team (the threads that share a row) writes row `at` of `y`.
    let (x, y) = unsafe {
        (Row::<T, VECTOR>::of(&x, team, at, p.cols), RowMut::<T, VECTOR>::of(&y, team, at, p.cols))
    };
    thread::wait_for_earlier_launches(x.first());
    if IN_REGISTERS > 0 {
        let in_registers = logits::<T, IN_REGISTERS, VECTOR>(x, 0);
        let finish = Finish::of::<T>(ExpSum::EMPTY.with(in_registers), team, p);
        for tile in 0..IN_REGISTERS {
            y.store(tile as u32, finish.apply(in_registers[tile].opaque_lanes()), Store::Default);
        }
        return;
    }
    let steps = x.tiles().div_ceil(STEP as u32);
    let mut partial = ExpSum::EMPTY;
    for step in 0..steps {
        partial = partial.with(logits::<T, STEP, VECTOR>(x, step * STEP as u32));
    }
    let finish = Finish::of::<T>(partial, team, p);
    for step in (0..steps).rev() {
        let first = step * STEP as u32;
        let packs = logits::<T, STEP, VECTOR>(x, first);
        for i in 0..STEP {
            y.store(first + i as u32, finish.apply(packs[i]), Store::Default);
        }
    }
}

/// # Safety
/// The requirements of [`softmax`] apply. If `p.vector` is 1, all operands allow 16-byte accesses
/// (`Rows::is_vector`).
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, y: Rows, p: SoftmaxParams) {
    thread::launch_bounds::<1024, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` to 1 only if all operands allow 16-byte accesses.
    unsafe {
        let team = Team::of_block();
        if p.vector != 0 {
            softmax::<T, 0, 4, true>(x, y, p, team)
        } else {
            softmax::<T, 0, 1, false>(x, y, p, team)
        }
    }
}

/// # Safety
/// The requirements of [`softmax`] apply, and all operands allow 16-byte accesses (`Rows::is_vector`).
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const MAX_THREADS: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    y: Rows,
    p: SoftmaxParams,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. All operands allow 16-byte accesses.
    unsafe { softmax::<T, IN_REGISTERS, 0, true>(x, y, p, Team::of_block()) }
}

/// # Safety
/// The requirements of [`softmax`] apply, and all operands allow 16-byte accesses (`Rows::is_vector`).
#[inline(always)]
unsafe fn cluster<T: Elem, const IN_REGISTERS: usize, const MAX_THREADS: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    y: Rows,
    p: SoftmaxParams,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. All operands allow 16-byte accesses.
    unsafe { softmax::<T, IN_REGISTERS, 0, true>(x, y, p, Team::of_cluster()) }
}

entry! {
    @shared(|block| Team::shared_bytes(block))
    softmax_any<T: [f32, f16, bf16]>(x: Rows, y: Rows, p: SoftmaxParams) => any_layout::<T>(x, y, p);
    @shared(|block| Team::shared_bytes(block))
    softmax_block2<T: [f32, f16, bf16]>(x: Rows, y: Rows, p: SoftmaxParams) => in_registers::<T, 2, 256, 4>(x, y, p);
    @shared(|block| Team::shared_bytes(block))
    softmax_block4<T: [f32, f16, bf16]>(x: Rows, y: Rows, p: SoftmaxParams) => in_registers::<T, 4, 512, 2>(x, y, p);
    @shared(|block| Team::shared_bytes(block))
    softmax_block8<T: [f32, f16, bf16]>(x: Rows, y: Rows, p: SoftmaxParams) => in_registers::<T, 8, 1024, 1>(x, y, p);
    @shared(|block| Team::cluster_shared_bytes(block))
    softmax_cluster8<T: [f32, f16, bf16]>(x: Rows, y: Rows, p: SoftmaxParams) => cluster::<T, 8, 1024, 1>(x, y, p);
    @shared(|block| Team::cluster_shared_bytes(block))
    softmax_cluster7<T: [f32, f16, bf16]>(x: Rows, y: Rows, p: SoftmaxParams) => cluster::<T, 7, 384, BLOCKS>(x, y, p)
}
