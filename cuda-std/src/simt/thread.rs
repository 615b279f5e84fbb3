//! Where a thread stands in its block and grid, and what its kernel promises about launches.
use crate::arch;

/// The thread's index in its block, `[x, y, z]`.
#[inline(always)]
pub fn index() -> [u32; 3] {
    arch::thread_idx()
}

/// The block's index in the grid, `[x, y, z]`.
#[inline(always)]
pub fn block_index() -> [u32; 3] {
    arch::block_idx()
}

/// Threads per block, `[x, y, z]`.
#[inline(always)]
pub fn block_dim() -> [u32; 3] {
    arch::block_dim()
}

/// Blocks per grid, `[x, y, z]`.
#[inline(always)]
pub fn grid_dim() -> [u32; 3] {
    arch::grid_dim()
}

/// The thread's number in its block, x running fastest.
#[inline(always)]
pub fn linear_index() -> u32 {
    let ([x, y, z], [dim_x, dim_y, _]) = (index(), block_dim());
    x + dim_x * (y + dim_y * z)
}

/// The thread's index over the whole grid, x only.
#[inline(always)]
pub fn global_index() -> u64 {
    u64::from(block_index()[0]) * u64::from(block_dim()[0]) + u64::from(index()[0])
}

/// The same numbers, but the compiler no longer knows where they come from: what is made of them in a loop is
/// worked out in each turn, where it would otherwise stay in registers over all of them.
#[inline(always)]
pub fn opaque([a, b]: [u32; 2]) -> [u32; 2] {
    arch::opaque([a, b])
}

/// [`opaque`] for an address.
#[inline(always)]
pub fn opaque_address<T>(address: *const T) -> *const T {
    arch::opaque_address(address as u64) as *const T
}

/// Waits until everything that was launched earlier is done and written, where the launch overlaps with it.
/// `first` is what the thread accesses first: the arithmetic that finds it, the longest part of what a kernel
/// begins with, is done while earlier launches still run. All threads of a block that have not returned call
/// this, once, before they access global memory. From sm_90 on; a kernel without it waits when it begins.
#[inline(always)]
pub fn wait_for_earlier_launches<T>(first: *const T) {
    arch::wait_for_earlier_launches(first as u64);
}

/// Declares, as the first line of a kernel, that it is launched with at most `MAX_THREADS` threads a block
/// and that `MIN_BLOCKS` blocks are meant to fit on a multiprocessor: the compiler then picks its registers
/// for that.
///
/// Rust has no attribute for it: on PTX this leaves a mark which `cuda_builder` writes into the entry as
/// `.maxntid` and `.minnctapersm`. The CPU executor refuses larger blocks, as the driver does.
#[inline(always)]
pub fn launch_bounds<const MAX_THREADS: u32, const MIN_BLOCKS: u32>() {
    arch::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
}

/// [`launch_bounds`] where the number of blocks is another one for each generation: `TURING` before sm_80,
/// whose multiprocessors hold half the threads, `AMPERE` before sm_90, `HOPPER` since then.
#[inline(always)]
pub fn launch_bounds_by_generation<
    const MAX_THREADS: u32,
    const TURING: u32,
    const AMPERE: u32,
    const HOPPER: u32,
>() {
    if cfg!(target_feature = "sm_90") {
        launch_bounds::<MAX_THREADS, HOPPER>();
    } else if cfg!(target_feature = "sm_80") {
        launch_bounds::<MAX_THREADS, AMPERE>();
    } else {
        launch_bounds::<MAX_THREADS, TURING>();
    }
}
