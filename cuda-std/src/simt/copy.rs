//! Asynchronous copies from global to shared memory (`cp.async`, from sm_80 on).
//!
//! The function [`Shared::copy_from`](super::shared::Shared::copy_from) starts a copy. On sm_75, it copies
//! synchronously. On the CPU executor, the copied bytes appear in shared memory only when the thread that
//! started the copy calls [`wait`].
use crate::arch;

/// Waits until all copies that the calling thread started have arrived in shared memory.
#[inline(always)]
#[track_caller]
pub fn wait() {
    arch::copy_wait();
}
