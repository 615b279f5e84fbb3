//! Operations in which all threads of a block take part: the block barrier and reductions.
use super::shared::SharedMemory;
pub use super::thread::linear_index;
use super::{cluster, thread, warp};
use crate::arch;

/// Waits until every thread of the block reaches this barrier. Memory accesses before the barrier are visible
/// to all threads of the block after it.
#[inline(always)]
#[track_caller]
pub fn sync() {
    arch::sync_threads();
}

/// Reduces `value` over all threads of the block. The result has the same bits in every thread.
///
/// The block has a multiple of 32 threads, and every thread must call the function. The function allocates
/// `size_of::<T>()` bytes per warp from `memory`, the dynamic shared memory. Call [`sync`] before another
/// reduction that uses the same bytes of shared memory.
#[inline(always)]
#[track_caller]
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

/// Reduces `value` over a group of `warps` consecutive warps of the block. `first` is the index of the first
/// warp of the calling thread's group. `number` is the index of the warp that contains the calling thread.
/// Both indices count the warps of the block from 0.
///
/// All groups of the block reduce at the same time, so every thread of the block must call the function.
#[inline(always)]
#[track_caller]
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
        // SAFETY: the store writes element `number` of `partial`, which has one element per warp of the
        // block. Only lane 0 of warp `number` writes this element, and other warps read it only after the
        // barrier.
        unsafe { partial.set(number, reduced) };
    }
    sync();
    // SAFETY: the load reads the element of `partial` for warp number `first + slot` of the block. This warp
    // exists, and it wrote the element before the barrier.
    reduce_lanes(|slot| unsafe { partial.get(first + slot) }, warps, neutral, combine)
}

/// Reduces `count` elements, at most 32, within a warp. Returns the result in every lane.
///
/// Let `width` be `count` rounded up to a power of two. The warp is divided into groups of `width`
/// neighbouring lanes, and each group reduces the same elements. The reduction therefore takes only
/// `log2(width)` shuffles.
#[inline(always)]
#[track_caller]
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

/// Reduces `value` over all threads of a cluster. The result has the same bits in every thread.
///
/// The kernel declares clusters of `BLOCKS` blocks. Every thread of the cluster must call the function
/// exactly once. The function allocates from `memory`, the dynamic shared memory. It takes `size_of::<T>()`
/// bytes per warp of the block, 8 bytes per block of the cluster, and 8 bytes for an mbarrier.
#[inline(always)]
#[track_caller]
pub(crate) fn reduce_cluster<T: warp::Exchange, const BLOCKS: u32>(
    value: T,
    neutral: T,
    memory: &mut SharedMemory,
    combine: impl Fn(T, T) -> T + Copy,
) -> T {
    let exchange = cluster::ClusterExchange::open::<BLOCKS>(memory);
    let reduced = reduce(value, neutral, memory, combine);
    let words = exchange.all(reduced.to_bits());
    // SAFETY: the load reads element `block` of `words`. The element exists, because `block` is less than the
    // cluster size. `all` returned only after the words of all blocks had arrived.
    reduce_lanes(
        |block| T::from_bits(unsafe { words.get(block) }),
        cluster::size::<BLOCKS>(),
        neutral,
        combine,
    )
}

/// Returns the sum of `value` over all threads of the block. The block has a multiple of 32 threads.
///
/// Every thread of the block must call the function, which allocates 4 bytes per warp from `memory`. Call
/// [`sync`] before another reduction that uses the same bytes of shared memory.
#[inline(always)]
#[track_caller]
pub fn sum(value: f32, memory: &mut SharedMemory) -> f32 {
    reduce(value, 0.0, memory, |a, b| a + b)
}

/// Returns the maximum of `value` over all threads of the block. The block has a multiple of 32 threads.
///
/// Every thread of the block must call the function, which allocates 4 bytes per warp from `memory`. Call
/// [`sync`] before another reduction that uses the same bytes of shared memory.
#[inline(always)]
#[track_caller]
pub fn max(value: f32, memory: &mut SharedMemory) -> f32 {
    reduce(value, f32::NEG_INFINITY, memory, f32::max)
}
