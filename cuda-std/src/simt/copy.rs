//! Copies from global to shared memory that go on while the thread does: `cp.async`, from sm_80 on. On sm_75 a copy is
//! done when it begins, on the CPU executor when it is waited for.
//!
//! They begin with [`Shared::copy_from`](super::shared::Shared::copy_from).
use crate::arch;

/// Waits until all copies that the calling thread began are in shared memory.
#[inline(always)]
pub fn wait() {
    arch::copy_wait();
}
