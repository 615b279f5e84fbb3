//! Thread-block clusters: blocks that run at the same time and can read and write each other's shared memory.
//!
//! Clusters exist from sm_90 on. On older GPUs, a kernel runs as if each cluster had one block, even if it
//! declares more. The host must therefore check the architecture before it launches such a kernel. The CPU
//! executor runs the blocks of a cluster together.
use super::shared::{Shared, SharedMemory};
use super::thread;
use crate::arch;

/// Declares that the kernel is launched in clusters of `BLOCKS` blocks.
///
/// `BLOCKS` is a power of two up to 8. The grid size in x must be a multiple of `BLOCKS`. The kernel must
/// also declare its [`launch_bounds`](super::thread::launch_bounds).
#[inline(always)]
#[track_caller]
pub fn bounds<const BLOCKS: u32>() {
    const { assert!(BLOCKS.is_power_of_two() && BLOCKS <= 8) };
    arch::cluster_bounds::<BLOCKS>();
}

/// Returns the number of blocks per cluster, for a kernel that declares clusters of `BLOCKS` blocks. Returns
/// 1 on GPUs before sm_90, which have no clusters.
#[inline(always)]
pub fn size<const BLOCKS: u32>() -> u32 {
    arch::cluster_size::<BLOCKS>()
}

/// Returns the rank of the block in its cluster.
#[inline(always)]
pub fn rank() -> u32 {
    arch::cluster_rank()
}

/// Waits until all threads of the cluster have reached this barrier. Memory accesses before the barrier are
/// visible to all threads of the cluster after it.
#[inline(always)]
#[track_caller]
pub fn sync() {
    arch::cluster_arrive_release();
    arch::cluster_wait();
}

/// Given `address` in this block's shared memory, returns the address of the byte at the same offset in block
/// `rank` of the cluster.
#[inline(always)]
#[track_caller]
pub(crate) fn map_address(address: u32, rank: u32) -> u32 {
    arch::map_address(address, rank)
}

/// A word in the shared memory of a block of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct RemoteWord(u32);

impl RemoteWord {
    /// Returns element `at` of `words` in block `rank` of the cluster. All blocks have the same layout of
    /// shared memory.
    #[inline(always)]
    #[track_caller]
    pub fn of(words: &Shared<u32>, at: u32, rank: u32) -> Self {
        Self(map_address(words.window(at), rank))
    }

    /// Reads the word.
    ///
    /// # Safety
    /// The block runs until after the read. A barrier separates the read from the writes of other threads.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get(self) -> u32 {
        // SAFETY: the caller guarantees that the block runs.
        unsafe { arch::remote_load(self.0) }
    }

    /// Writes the word.
    ///
    /// # Safety
    /// The block runs until after the write. A barrier separates the write from the accesses of other
    /// threads.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set(self, value: u32) {
        // SAFETY: the caller guarantees that the block runs.
        unsafe { arch::remote_store(self.0, value) }
    }
}

/// An exchange between the blocks of a cluster: each block sends one 64-bit word to all blocks.
///
/// An mbarrier in each block's shared memory counts the bytes that have arrived. A block could also wait for
/// the words at a cluster barrier. However, such a barrier is slower, because it orders all earlier memory
/// accesses of all threads.
#[derive(Clone, Copy)]
pub struct ClusterExchange {
    words: Shared<u64>,
    barrier: Shared<u64>,
    blocks: u32,
}

impl ClusterExchange {
    /// Prepares an exchange of 64-bit words between the blocks of a cluster. The kernel declares clusters of
    /// `BLOCKS` blocks. Every thread of the cluster must call this function once.
    ///
    /// The function allocates one 64-bit word per block of the cluster, and one for the mbarrier, from
    /// `memory`.
    #[inline(always)]
    #[track_caller]
    pub fn open<const BLOCKS: u32>(memory: &mut SharedMemory) -> Self {
        let blocks = size::<BLOCKS>();
        let exchange = Self { words: memory.take(blocks), barrier: memory.take(1), blocks };
        if thread::linear_index() == 0 {
            // SAFETY: `cluster_expect` initializes an mbarrier in a word of this block's shared memory.
            // Blocks send words only in `all`, after a cluster barrier, so no word arrives before the
            // mbarrier is initialized.
            unsafe { arch::cluster_expect(exchange.barrier.address(0), blocks * 8) };
        }
        arch::cluster_arrive();
        exchange
    }

    /// Sends `word` to every block of the cluster. Returns the words of all blocks, indexed by block rank.
    ///
    /// All threads of a block must pass the same `word`. Every thread of the cluster must call the function
    /// once. Between [`ClusterExchange::open`] and this call, there must be a block barrier.
    #[inline(always)]
    #[track_caller]
    pub fn all(self, word: u64) -> Shared<u64> {
        // After this wait, every block of the cluster is running and has initialized its mbarrier.
        arch::cluster_wait();
        let to = thread::linear_index();
        if to < self.blocks {
            // SAFETY: `cluster_send` writes a word to the shared memory of block `to`. All blocks of the
            // cluster have the same shared-memory layout, with one word for each rank. Block `to` does not
            // exit before this word arrives, because it waits in `cluster_receive`.
            unsafe { arch::cluster_send(self.words.address(rank()), self.barrier.address(0), to, word) };
        }
        // SAFETY: `cluster_receive` waits at an mbarrier, which thread 0 initialized in `open`. The caller
        // guarantees that a block barrier followed.
        unsafe { arch::cluster_receive(self.barrier.address(0)) };
        self.words
    }
}
