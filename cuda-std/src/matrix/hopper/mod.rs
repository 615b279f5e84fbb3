//! Hopper instructions: mbarriers, TMA copies, and warpgroup matrix multiplication (`wgmma`).
//!
//! This module exists only for PTX, because the CPU executor does not emulate TMA and `wgmma`. Tests of
//! kernels that use the module therefore need a GPU. Addresses in shared memory are 32-bit numbers, because
//! the PTX instructions take 32-bit addresses.
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

/// Number of threads in a warpgroup.
pub const WARP_GROUP: u32 = 128;

/// Returns the index of the thread's warpgroup in the block. A shuffle from lane 0 tells the compiler that
/// the index is the same in all lanes of a warp.
#[inline(always)]
pub fn warp_group() -> u32 {
    warp::shuffle(u32::MAX, thread::index()[0] / WARP_GROUP, 0)
}

/// Returns the first address of the launch's shared memory that is a multiple of `align`, a power of two.
/// Shared memory starts at a multiple of 16, so up to `align - 16` bytes lie before this address. The launch
/// must therefore request `align - 16` bytes more than the kernel uses.
#[inline(always)]
pub fn shared_base(align: u32) -> u32 {
    hopper::shared_address(arch::shared_base()).next_multiple_of(align)
}

/// Raises the number of registers of each thread of the warpgroup to `COUNT` (`setmaxnreg.inc`). The
/// instruction waits until other warpgroups have released enough registers.
///
/// # Safety
/// The whole warpgroup calls this function, and its threads have at most `COUNT` registers.
#[inline(always)]
pub unsafe fn take_registers<const COUNT: u32>() {
    // SAFETY: the caller ensures that the whole warpgroup makes the call and that its threads have at most
    // `COUNT` registers.
    unsafe { hopper::registers_up::<COUNT>() }
}

/// Lowers the number of registers of each thread of the warpgroup to `COUNT` (`setmaxnreg.dec`).
///
/// # Safety
/// The whole warpgroup calls this function, and its threads have at least `COUNT` registers.
#[inline(always)]
pub unsafe fn give_registers<const COUNT: u32>() {
    // SAFETY: the caller ensures that the whole warpgroup makes the call and that its threads have at least
    // `COUNT` registers.
    unsafe { hopper::registers_down::<COUNT>() }
}

/// Writes an f32 to shared memory.
///
/// # Safety
/// The address is a multiple of 4 inside the launch's shared memory. Barriers order this write and the
/// accesses of other threads to the address.
#[inline(always)]
pub unsafe fn shared_store(address: u32, value: f32) {
    // SAFETY: the caller passes an aligned address inside the launch's shared memory.
    unsafe { hopper::shared_store(address, value) }
}

/// Writes four matrices to shared memory (`stmatrix.x4`). Each matrix has 8 rows of 16 bytes.
///
/// Lane `i` passes the address of row `i % 8` of matrix `i / 8`. Lane `i` also passes two elements of each
/// matrix: row `i / 4`, columns `2 * (i % 4)` and `2 * (i % 4) + 1`. The accumulators of a matrix
/// multiplication have the same layout.
///
/// # Safety
/// Each address is a multiple of 16 inside the launch's shared memory. Barriers order this write and the
/// accesses of other threads to these rows. All lanes of the warp call this function.
#[inline(always)]
pub unsafe fn shared_store_matrices(address: u32, matrices: [u32; 4]) {
    // SAFETY: the caller passes aligned addresses inside the launch's shared memory, in all lanes.
    unsafe { hopper::store_matrices(address, matrices) }
}

/// Makes the thread's writes to shared memory visible to TMA (`fence.proxy.async`).
#[inline(always)]
pub fn publish_shared() {
    // SAFETY: a fence accesses no memory itself.
    unsafe { hopper::fence_async_shared() }
}

/// Reads two consecutive f32 values from shared memory.
///
/// # Safety
/// The address is a multiple of 8 inside the launch's shared memory. Barriers order this read and the writes
/// of other threads to the address.
#[inline(always)]
pub unsafe fn shared_load_pair(address: u32) -> [f32; 2] {
    // SAFETY: the caller passes an aligned address inside the launch's shared memory.
    unsafe { hopper::shared_load_pair(address) }
}
