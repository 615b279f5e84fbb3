//! The launch before and the launch after: programmatic dependent launch.
//!
//! On sm_90 and newer a kernel whose launch allows it is started while the one before it on the stream still runs, so
//! that its launch costs no time of its own. Such a kernel calls [`wait`] before it touches memory. The host allows it
//! for exactly the kernels whose PTX waits; on older GPUs and on the CPU executor both functions do nothing.
use crate::arch;

/// Waits until the launch before this one is complete and its writes are visible.
#[inline(always)]
pub fn wait() {
    arch::grid_wait();
}

/// Allows the launch after this one to start once every block has come here or ended. It still waits in [`wait`] for
/// the end of this one.
#[inline(always)]
pub fn release() {
    arch::grid_release();
}
