//! What a Hopper kernel is written with: barriers that count bytes, bulk tensor copies, products of a warp group.
//!
//! Only on PTX: the CPU executor does not play asynchronous engines, so a kernel that uses these needs a GPU to be
//! tested. Addresses in shared memory are 32-bit numbers, as all of these instructions take them.
//!
//! | CUDA C++ | here |
//! | --- | --- |
//! | `cuda::barrier`, `mbarrier` | [`barrier::Barrier`] |
//! | `bar.sync` with a number | [`barrier::Named`] |
//! | `CUtensorMap`, `cp.async.bulk.tensor` | [`tensor_map::TensorMap`] |
//! | `stmatrix` | [`shared_store_matrices`] |
//! | `wgmma` and its descriptors | [`wgmma`] |
//! | `setmaxnreg` | [`take_registers`], [`give_registers`] |
use crate::arch::{self, hopper};
use crate::simt::{thread, warp};

pub mod barrier;
pub mod tensor_map;
pub mod wgmma;

/// Threads of a warp group.
pub const WARP_GROUP: u32 = 128;

/// The number of the thread's warp group, in a register that the warp shares.
#[inline(always)]
pub fn warp_group() -> u32 {
    warp::shuffle(u32::MAX, thread::index()[0] / WARP_GROUP, 0)
}

/// The first address of the launch's shared memory that is a multiple of `align`, a power of two: a launch that needs
/// it asks for up to `align - 16` bytes more.
#[inline(always)]
pub fn shared_base(align: u32) -> u32 {
    hopper::shared_address(arch::shared_base()).next_multiple_of(align)
}

/// Raises the registers of each thread of the warp group to `COUNT`; waits until others have given enough.
///
/// # Safety
/// The whole warp group is here, and has fewer.
#[inline(always)]
pub unsafe fn take_registers<const COUNT: u32>() {
    // SAFETY: as the caller promises.
    unsafe { hopper::registers_up::<COUNT>() }
}

/// Lowers the registers of each thread of the warp group to `COUNT`.
///
/// # Safety
/// The whole warp group is here, and has more.
#[inline(always)]
pub unsafe fn give_registers<const COUNT: u32>() {
    // SAFETY: as the caller promises.
    unsafe { hopper::registers_down::<COUNT>() }
}

/// Writes a number to shared memory.
///
/// # Safety
/// The address is a multiple of 4 in the launch's shared memory; barriers stand between this and other accesses.
#[inline(always)]
pub unsafe fn shared_store(address: u32, value: f32) {
    // SAFETY: as the caller promises.
    unsafe { hopper::shared_store(address, value) }
}

/// Writes four matrices of 8 rows of 16 bytes to shared memory: lane `i` gives the address of row `i % 8` of matrix `i / 8`,
/// and has columns `2 * (i % 4)` and the next of row `i / 4` of each, as the accumulators of a product do.
///
/// # Safety
/// As [`shared_store`], at multiples of 16; the whole warp is here.
#[inline(always)]
pub unsafe fn shared_store_matrices(address: u32, matrices: [u32; 4]) {
    // SAFETY: as the caller promises.
    unsafe { hopper::store_matrices(address, matrices) }
}

/// Shows the copy engine what the thread wrote to shared memory.
#[inline(always)]
pub fn publish_shared() {
    // SAFETY: a fence.
    unsafe { hopper::fence_async_shared() }
}

/// Reads two numbers from shared memory.
///
/// # Safety
/// As [`shared_store`], at a multiple of 8.
#[inline(always)]
pub unsafe fn shared_load_pair(address: u32) -> [f32; 2] {
    // SAFETY: as the caller promises.
    unsafe { hopper::shared_load_pair(address) }
}
