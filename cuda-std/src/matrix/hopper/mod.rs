//! Hopper instructions: mbarriers, TMA copies, and warpgroup matrix multiplication (`wgmma`).
//!
//! Shared-memory addresses are 32-bit numbers, as in PTX's `.shared` address space. PTX code with this module
//! needs sm_90, and for `wgmma` and `setmaxnreg` sm_90a.
//!
//! | CUDA C++ | here |
//! | --- | --- |
//! | `cuda::barrier`, `mbarrier` | [`barrier::Barrier`] |
//! | `bar.sync` with a number | [`barrier::Named`] |
//! | `CUtensorMap`, `cp.async.bulk.tensor` | [`tensor_map::TensorMap`] |
//! | `ldmatrix`, `stmatrix` | [`shared_load_matrices`], [`shared_store_matrices`], [`shared_store_transposed`] |
//! | `wgmma` and its descriptors | [`wgmma`] |
//! | `setmaxnreg` | [`take_registers`], [`give_registers`] |
use crate::arch::{self, hopper};
use crate::simt::{thread, warp};

pub mod barrier;
pub mod tensor_map;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub mod wgmma;

/// Number of threads in a warpgroup.
pub const WARP_GROUP: u32 = 128;

/// Returns the index of the calling thread's warpgroup in the block. All lanes get the index by a shuffle
/// from lane 0, so that the compiler treats it as equal in all lanes of a warp.
#[inline(always)]
#[track_caller]
pub fn warp_group() -> u32 {
    warp::shuffle(u32::MAX, thread::index()[0] / WARP_GROUP, 0)
}

/// Returns the first address in dynamic shared memory that is a multiple of `align`, a power of two. Dynamic
/// shared memory starts at a multiple of 16, so up to `align - 16` bytes before the returned address are
/// unused. The launch must therefore request `align - 16` bytes more than the kernel uses.
#[inline(always)]
pub fn shared_base(align: u32) -> u32 {
    hopper::shared_address(arch::shared_base()).next_multiple_of(align)
}

/// Raises the register limit of each thread of the warpgroup to `COUNT` (`setmaxnreg.inc`). The instruction
/// waits until other warpgroups have released enough registers.
///
/// # Safety
/// The whole warpgroup calls this function. Before the call, the register limit of its threads is at most
/// `COUNT`.
#[inline(always)]
#[track_caller]
pub unsafe fn take_registers<const COUNT: u32>() {
    // SAFETY: `registers_up` requires that the whole warpgroup executes the instruction, and that the
    // register limit was at most `COUNT`. The caller guarantees both.
    unsafe { hopper::registers_up::<COUNT>() }
}

/// Lowers the register limit of each thread of the warpgroup to `COUNT` (`setmaxnreg.dec`).
///
/// # Safety
/// The whole warpgroup calls this function. Before the call, the register limit of its threads is at least
/// `COUNT`.
#[inline(always)]
#[track_caller]
pub unsafe fn give_registers<const COUNT: u32>() {
    // SAFETY: `registers_down` requires that the whole warpgroup executes the instruction, and that the
    // register limit was at least `COUNT`. The caller guarantees both.
    unsafe { hopper::registers_down::<COUNT>() }
}

/// Writes an f32 to shared memory.
///
/// # Safety
/// `address` is a multiple of 4, and its 4 bytes lie inside the launch's shared memory. Barriers separate
/// this write from the accesses of other threads to these bytes.
#[inline(always)]
#[track_caller]
pub unsafe fn shared_store(address: u32, value: f32) {
    // SAFETY: the store writes the 4 bytes at `address`. The caller guarantees that they are aligned and lie
    // inside the launch's shared memory.
    unsafe { hopper::shared_store(address, value) }
}

/// Reads four matrices from shared memory (`ldmatrix.x4`). Each matrix has 8 rows of 16 bytes. The addresses
/// and the elements of a lane are those of [`shared_store_matrices`].
///
/// # Safety
/// Each address is a multiple of 16, and its 16 bytes lie inside the launch's shared memory. Barriers
/// separate this read from the writes of other threads to these rows. All lanes of the warp call this
/// function.
#[inline(always)]
#[track_caller]
pub unsafe fn shared_load_matrices(address: u32) -> [u32; 4] {
    // SAFETY: each lane passes the address of 16 bytes. The caller guarantees that they are aligned and lie
    // inside the launch's shared memory.
    unsafe { arch::load_matrices(address) }
}

/// Writes four matrices to shared memory (`stmatrix.x4`). Each matrix has 8 rows of 16 bytes.
///
/// Lane `i` passes in `address` the address of row `i % 8` of matrix `i / 8`. In `matrices`, it passes two
/// elements of each matrix. They are in row `i / 4`, and in the columns `2 * (i % 4)` and `2 * (i % 4) + 1`.
/// The accumulators of `mma.sync` and `wgmma` are distributed over the lanes in the same way.
///
/// # Safety
/// Each address is a multiple of 16, and its 16 bytes lie inside the launch's shared memory. Barriers
/// separate this write from the accesses of other threads to these rows. All lanes of the warp call this
/// function.
#[inline(always)]
#[track_caller]
pub unsafe fn shared_store_matrices(address: u32, matrices: [u32; 4]) {
    // SAFETY: each lane writes the 16 bytes at its address. The caller guarantees that they are aligned and
    // lie inside the launch's shared memory.
    unsafe { hopper::store_matrices(address, matrices) }
}

/// Does the same as [`shared_store_matrices`], but stores the transpose of each matrix (`stmatrix.x4.trans`).
/// In `matrices`, lane `i` passes two elements of each matrix. They are in column `i / 4`, and in the rows `2
/// * (i % 4)` and `2 * (i % 4) + 1`.
///
/// # Safety
/// The requirements of [`shared_store_matrices`] apply.
#[inline(always)]
#[track_caller]
pub unsafe fn shared_store_transposed(address: u32, matrices: [u32; 4]) {
    // SAFETY: each lane writes the 16 bytes at its address. The caller guarantees that they are aligned and
    // lie inside the launch's shared memory.
    unsafe { hopper::store_transposed(address, matrices) }
}

/// Makes the thread's writes to shared memory visible to TMA (`fence.proxy.async`).
#[inline(always)]
#[track_caller]
pub fn publish_shared() {
    // SAFETY: a fence accesses no memory itself.
    unsafe { hopper::fence_async_shared() }
}

/// Reads two consecutive f32 values from shared memory.
///
/// # Safety
/// `address` is a multiple of 8, and its 8 bytes lie inside the launch's shared memory. Barriers separate
/// this read from the writes of other threads to these bytes.
#[inline(always)]
#[track_caller]
pub unsafe fn shared_load_pair(address: u32) -> [f32; 2] {
    // SAFETY: the load reads the 8 bytes at `address`. The caller guarantees that they are aligned and lie
    // inside the launch's shared memory.
    unsafe { hopper::shared_load_pair(address) }
}
