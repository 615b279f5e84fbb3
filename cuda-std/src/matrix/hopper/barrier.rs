//! Mbarriers in shared memory, and named barriers (`bar.sync`) of a block.
use crate::arch::hopper;
use crate::simt::cluster;

/// An mbarrier: an object of 8 bytes in shared memory that counts arrivals of threads and bytes of
/// asynchronous copies. A phase ends when all expected arrivals and bytes have been counted.
#[derive(Clone, Copy)]
pub struct Barrier {
    address: u32,
}

impl Barrier {
    /// Size of an mbarrier in bytes.
    pub const BYTES: u32 = 8;

    /// Returns the mbarrier at `address` in shared memory. `address` must be a multiple of 8.
    #[inline(always)]
    pub fn at(address: u32) -> Self {
        Self { address }
    }

    /// Initializes the mbarrier for `arrivals` arrivals per phase. Before any thread uses the mbarrier, call
    /// [`publish`] and then a block barrier.
    ///
    /// # Safety
    /// The mbarrier lies in the block's shared memory, and exactly one thread initializes it.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn init(self, arrivals: u32) {
        // SAFETY: the caller passes an address in the block's shared memory.
        unsafe { hopper::barrier_init(self.address, arrivals) }
    }

    /// Arrives at the mbarrier once.
    ///
    /// # Safety
    /// The mbarrier is initialized.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn arrive(self) {
        // SAFETY: the caller initialized the mbarrier.
        unsafe { hopper::barrier_arrive(self.address) }
    }

    /// Arrives at the mbarrier once. Adds `bytes` to the number of bytes that asynchronous copies must
    /// deliver in the current phase (`mbarrier.arrive.expect_tx`).
    ///
    /// # Safety
    /// The mbarrier is initialized.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn expect(self, bytes: u32) {
        // SAFETY: the caller initialized the mbarrier.
        unsafe { hopper::barrier_expect(self.address, bytes) }
    }

    /// Waits until the phase with parity `parity` has ended. The first phase has parity 0, the next phase has
    /// parity 1, and so on. On a newly initialized mbarrier, a wait for parity 1 returns at once.
    ///
    /// # Safety
    /// The mbarrier is initialized.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn wait(self, parity: u32) {
        // SAFETY: the caller initialized the mbarrier.
        unsafe { hopper::barrier_wait(self.address, parity) }
    }

    /// Returns whether the phase with parity `parity` has ended. The function may suspend the thread for a
    /// short time before it returns false.
    ///
    /// # Safety
    /// The mbarrier is initialized.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn test(self, parity: u32) -> bool {
        // SAFETY: the caller initialized the mbarrier.
        unsafe { hopper::barrier_test(self.address, parity) }
    }

    /// Arrives once at the mbarrier at the same address of block `rank` of the cluster.
    ///
    /// # Safety
    /// Block `rank` has initialized this mbarrier and does not exit before the arrival.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn arrive_in(self, rank: u32) {
        // SAFETY: the caller guarantees an initialized mbarrier in block `rank`.
        unsafe { hopper::barrier_arrive_remote(cluster::map_address(self.address, rank)) }
    }

    /// Does the same as [`Barrier::arrive_in`], but the arrival orders only the reads of `wgmma` operations
    /// that the thread has waited for. It does not order the thread's own memory accesses. This is enough to
    /// release a buffer that only `wgmma` reads.
    ///
    /// [`Barrier::arrive_in`] is slower, because it first waits until all memory accesses of the thread have
    /// been performed. This wait takes about as long as the multiplication of one tile.
    ///
    /// # Safety
    /// The requirements of [`Barrier::arrive_in`] apply.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn arrive_in_after_wgmma(self, rank: u32) {
        // SAFETY: the caller guarantees an initialized mbarrier in block `rank`.
        unsafe { hopper::barrier_arrive_remote_after_wgmma(cluster::map_address(self.address, rank)) }
    }

    /// Returns the address of the mbarrier in shared memory.
    #[inline(always)]
    pub fn address(self) -> u32 {
        self.address
    }
}

/// Makes the initialization of mbarriers visible to TMA and to other blocks of the cluster
/// (`fence.mbarrier_init`).
#[inline(always)]
#[track_caller]
pub fn publish() {
    // SAFETY: a fence accesses no memory itself.
    unsafe { hopper::barrier_init_fence() }
}

/// A named barrier of a block: `bar.sync` with a barrier number from 1 to 15. `THREADS` is the number of
/// participating threads, a multiple of 32. [`block::sync`](crate::simt::block::sync) uses the barrier number
/// 0.
#[derive(Clone, Copy)]
pub struct Named<const THREADS: u32>(pub u32);

impl<const THREADS: u32> Named<THREADS> {
    /// Arrives at the named barrier, and waits until `THREADS` threads have arrived.
    ///
    /// # Safety
    /// All lanes of the warp call this function. Each time the barrier is used, exactly `THREADS` threads
    /// arrive.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn sync(self) {
        // SAFETY: the caller ensures that whole warps execute the instruction and that exactly `THREADS`
        // threads arrive.
        unsafe { hopper::named_sync(self.0, THREADS) }
    }

    /// Arrives at the named barrier and does not wait for other threads.
    ///
    /// # Safety
    /// The requirements of [`Named::sync`] apply.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn arrive(self) {
        // SAFETY: the caller ensures that whole warps execute the instruction and that exactly `THREADS`
        // threads arrive.
        unsafe { hopper::named_arrive(self.0, THREADS) }
    }
}
