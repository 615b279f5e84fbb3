//! The threads of one block: barrier and reductions.
use crate::shared::{Shared, SharedMemory};
use crate::{arch, cluster, thread, warp};

/// Waits until every thread of the block is here and orders their memory accesses.
#[inline(always)]
pub fn sync() {
    arch::sync_threads();
}

/// The thread's number in its block, x running fastest.
#[inline(always)]
pub fn linear_index() -> u32 {
    let ([x, y, z], [dim_x, dim_y, _]) = (thread::index(), thread::block_dim());
    x + dim_x * (y + dim_y * z)
}

/// Folds `value` over the block (a multiple of 32 threads), the same bits in every thread.
///
/// Takes the bytes of a `T` for each warp from `memory`; every thread must call it. A second fold over the same memory needs a
/// [`sync`] before it.
#[inline(always)]
pub fn fold<T: warp::Exchange>(
    value: T,
    neutral: T,
    memory: &mut SharedMemory,
    combine: impl Fn(T, T) -> T + Copy,
) -> T {
    let [x, y, z] = thread::block_dim();
    let (number, warps) = (linear_index() / warp::SIZE, x * y * z / warp::SIZE);
    fold_warps(value, neutral, number, 0, warps, memory, combine)
}

/// Folds over the `warps` warps from number `first` on, for each such group of the block at once; `number` is the
/// calling thread's warp.
#[inline(always)]
pub(crate) fn fold_warps<T: warp::Exchange>(
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
    let folded = warp::fold(value, warp::SIZE, combine);
    if warp::lane() == 0 {
        // SAFETY: one slot a warp of the block; only lane 0 writes it, before the barrier.
        unsafe { partial.set(number, folded) };
    }
    sync();
    // SAFETY: the slots of the block's warps, each written before the barrier.
    unsafe { fold_slots(partial, first, warps, neutral, combine) }
}

/// Folds `count` elements of `slots`, up to 32, from `first` on. As many lanes as there are elements fold them, each group
/// of lanes the same ones: the steps are as few as can be, and every lane ends with the result.
///
/// # Safety
/// They were written before a barrier.
#[inline(always)]
unsafe fn fold_slots<T: warp::Exchange>(
    slots: Shared<T>,
    first: u32,
    count: u32,
    neutral: T,
    combine: impl Fn(T, T) -> T + Copy,
) -> T {
    let width = count.next_power_of_two();
    let slot = warp::lane() % width;
    // SAFETY: as the caller promises.
    let theirs = if slot < count { unsafe { slots.get(first + slot) } } else { neutral };
    warp::fold(theirs, width, combine)
}

/// As [`fold`], over all blocks of a cluster of a kernel that declares `BLOCKS`; takes a `T` for each block more. Every
/// thread must have called [`cluster::start`] before.
#[inline(always)]
pub(crate) fn fold_cluster<T: warp::Exchange, const BLOCKS: u32>(
    value: T,
    neutral: T,
    memory: &mut SharedMemory,
    combine: impl Fn(T, T) -> T + Copy,
) -> T {
    let folded = fold(value, neutral, memory, combine);
    let (blocks, thread) = (cluster::size::<BLOCKS>(), linear_index());
    let slots = memory.take::<T>(blocks);
    // The others run: their memory is there.
    cluster::wait();
    if thread < blocks {
        // SAFETY: each block has a slot in every block's memory; nobody ends before all have come to the next barrier.
        unsafe { slots.set_in(thread, cluster::rank(), folded) };
    }
    cluster::arrive();
    cluster::wait();
    // SAFETY: every block wrote its slot before the barrier.
    unsafe { fold_slots(slots, 0, blocks, neutral, combine) }
}

/// The sum of `value` over the block: see [`fold`].
#[inline(always)]
pub fn sum(value: f32, memory: &mut SharedMemory) -> f32 {
    fold(value, 0.0, memory, |a, b| a + b)
}

/// The maximum of `value` over the block: see [`fold`].
#[inline(always)]
pub fn max(value: f32, memory: &mut SharedMemory) -> f32 {
    fold(value, f32::NEG_INFINITY, memory, f32::max)
}
