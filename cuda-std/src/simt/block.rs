//! The threads of one block: barrier and reductions.
use super::shared::SharedMemory;
pub use super::thread::linear_index;
use super::{cluster, thread, warp};
use crate::arch;

/// Waits until every thread of the block is here and orders their memory accesses.
#[inline(always)]
pub fn sync() {
    arch::sync_threads();
}

/// Folds `value` over the block (a multiple of 32 threads), the same bits in every thread.
///
/// Takes the bytes of a `T` for each warp from `memory`; every thread must call it. A second fold over the
/// same memory needs a [`sync`] before it.
#[inline(always)]
pub fn reduce<T: warp::Exchange>(
    value: T,
    neutral: T,
    memory: &mut SharedMemory,
    combine: impl Fn(T, T) -> T + Copy,
) -> T {
    let [x, y, z] = thread::block_dim();
    let (number, warps) = (linear_index() / warp::SIZE, x * y * z / warp::SIZE);
    reduce_warps(value, neutral, number, 0, warps, memory, combine)
}

/// Folds over the `warps` warps from number `first` on, for each such group of the block at once; `number` is
/// the calling thread's warp.
#[inline(always)]
pub(crate) fn reduce_warps<T: warp::Exchange>(
    value: T,
    neutral: T,
    number: u32,
    first: u32,
    warps: u32,
    memory: &mut SharedMemory,
    combine: impl Fn(T, T) -> T + Copy,
) -> T {
    let [x, y, z] = thread::block_dim();
    let partial = memory.take::<T>(x * y * z / warp::SIZE);
    let reduced = warp::reduce(value, warp::SIZE, combine);
    if warp::lane() == 0 {
        // SAFETY: one slot a warp of the block; only lane 0 writes it, before the barrier.
        unsafe { partial.set(number, reduced) };
    }
    sync();
    // SAFETY: one of the slots of the block's warps, each written before the barrier.
    reduce_lanes(|slot| unsafe { partial.get(first + slot) }, warps, neutral, combine)
}

/// Folds `count` elements, up to 32. As many lanes as there are elements fold them, each group of lanes the
/// same ones: the steps are as few as can be, and every lane ends with the result.
#[inline(always)]
fn reduce_lanes<T: warp::Exchange>(
    element: impl Fn(u32) -> T,
    count: u32,
    neutral: T,
    combine: impl Fn(T, T) -> T + Copy,
) -> T {
    let width = count.next_power_of_two();
    let slot = warp::lane() % width;
    let theirs = if slot < count { element(slot) } else { neutral };
    warp::reduce(theirs, width, combine)
}

/// As [`reduce`], over all blocks of a cluster of a kernel that declares `BLOCKS`, once; takes 8 bytes for each
/// block and 8 more.
#[inline(always)]
pub(crate) fn reduce_cluster<T: warp::Exchange, const BLOCKS: u32>(
    value: T,
    neutral: T,
    memory: &mut SharedMemory,
    combine: impl Fn(T, T) -> T + Copy,
) -> T {
    let exchange = cluster::ClusterExchange::open::<BLOCKS>(memory);
    let reduced = reduce(value, neutral, memory, combine);
    let words = exchange.all(reduced.to_bits());
    // SAFETY: a block's word, which has come.
    reduce_lanes(
        |block| T::from_bits(unsafe { words.get(block) }),
        cluster::size::<BLOCKS>(),
        neutral,
        combine,
    )
}

/// The sum of `value` over the block: see [`reduce`].
#[inline(always)]
pub fn sum(value: f32, memory: &mut SharedMemory) -> f32 {
    reduce(value, 0.0, memory, |a, b| a + b)
}

/// The maximum of `value` over the block: see [`reduce`].
#[inline(always)]
pub fn max(value: f32, memory: &mut SharedMemory) -> f32 {
    reduce(value, f32::NEG_INFINITY, memory, f32::max)
}
