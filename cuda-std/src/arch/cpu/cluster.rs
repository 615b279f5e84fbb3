//! Operations of thread-block clusters on the CPU executor. On the executor, a cluster always has one block.
use super::memory::shared_base;
use super::sync::sync_threads;
use crate::cpu::note;

pub fn cluster_bounds<const BLOCKS: u32>() {}

pub fn cluster_size<const BLOCKS: u32>() -> u32 {
    1
}

pub fn cluster_rank() -> u32 {
    0
}

pub fn cluster_arrive() {}

pub fn cluster_wait() {}

/// # Safety
/// On the CPU executor, every call is safe. The function is `unsafe` because its PTX version has
/// requirements.
pub unsafe fn cluster_expect(_: *mut u64, _: u32) {}

/// # Safety
/// `to` points to an aligned 64-bit word of the block's shared memory.
pub unsafe fn cluster_send(to: *mut u64, _: *mut u64, _: u32, value: u64) {
    note(to.addr() - shared_base().addr(), size_of::<u64>(), true);
    // SAFETY: the caller passes a word of the block's shared memory.
    unsafe { to.write(value) };
}

/// # Safety
/// On the CPU executor, every call is safe. The function is `unsafe` because its PTX version has
/// requirements.
pub unsafe fn cluster_receive(_: *mut u64) {
    sync_threads();
}
