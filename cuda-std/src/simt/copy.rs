//! Asynchronous copies from global to shared memory (`cp.async`, from sm_80 on).
//!
//! The function [`Shared::copy_from`](super::shared::Shared::copy_from) starts a copy. On sm_75, it copies
//! synchronously. On the CPU executor, the copied bytes appear in shared memory only when the thread that
//! started the copy calls [`wait`] or [`wait_for_groups`].
use crate::arch;

/// Waits until all copies that the calling thread started have arrived in shared memory.
#[inline(always)]
#[track_caller]
pub fn wait() {
    arch::copy_wait();
}

/// Makes a group of all copies that the calling thread has started since its previous group. The group may be
/// empty. On sm_75, the function does nothing.
#[inline(always)]
#[track_caller]
pub fn commit() {
    arch::copy_commit();
}

/// Waits until all groups of the calling thread, except at most the last `PENDING` ones, are complete. The
/// copies of the complete groups have then arrived in shared memory.
#[inline(always)]
#[track_caller]
pub fn wait_for_groups<const PENDING: u32>() {
    arch::copy_wait_for_groups::<PENDING>();
}
