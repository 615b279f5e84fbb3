//! Blocks that run at the same time and write into each other's shared memory: a thread-block cluster.
//!
//! From sm_90 on. Before, and on the CPU executor, a cluster is one block, whatever its kernel declares; a host that
//! launches `BLOCKS` blocks a cluster asks for the architecture first.
use crate::arch;
use crate::shared::Shared;

/// Declares, beside [`launch_bounds`](crate::thread::launch_bounds), that blocks are launched in clusters of `BLOCKS`, at
/// most 8, which the grid's x is a multiple of.
#[inline(always)]
pub fn bounds<const BLOCKS: u32>() {
    const { assert!(BLOCKS.is_power_of_two() && BLOCKS <= 8) };
    arch::cluster_bounds::<BLOCKS>();
}

/// The blocks of a cluster of a kernel that declares `BLOCKS`.
#[inline(always)]
pub fn size<const BLOCKS: u32>() -> u32 {
    arch::cluster_size::<BLOCKS>()
}

/// The block's number in its cluster.
#[inline(always)]
pub fn rank() -> u32 {
    arch::cluster_rank()
}

/// Says that this thread has started, as the first [`arrive`] of a kernel: nothing that it wrote is meant.
#[inline(always)]
pub fn start() {
    arch::cluster_start();
}

/// Says that this thread has come so far. Every thread of the cluster must call it, then [`wait`], and so on by turns.
#[inline(always)]
pub fn arrive() {
    arch::cluster_arrive();
}

/// Waits until every thread of the cluster has said so; what they wrote before is there then.
#[inline(always)]
pub fn wait() {
    arch::cluster_wait();
}

impl<T: Copy> Shared<T> {
    /// Writes element `at` of the same part of block `rank`'s memory.
    ///
    /// # Safety
    /// As for [`Shared::set`], there; that block has started (it has come to a first barrier of the cluster), and does not
    /// end before it has come to another.
    #[inline(always)]
    pub unsafe fn set_in(&self, rank: u32, at: u32, value: T) {
        const { assert!(size_of::<T>().is_multiple_of(4) && align_of::<T>() == 4) };
        let (to, words) = (self.address(at).cast::<u32>(), (&raw const value).cast::<u32>());
        for i in 0..size_of::<T>() / 4 {
            // SAFETY: a word of the element, as the caller promises; words of `value` are initialised.
            unsafe { arch::cluster_store(to.wrapping_add(i), rank, words.add(i).read()) };
        }
    }
}
