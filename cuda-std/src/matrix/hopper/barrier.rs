//! Barriers in shared memory that count arrivals and bytes, and the numbered ones of the block.
use crate::arch::hopper;

/// A barrier in shared memory: 8 bytes. A phase is over when all arrivals and all expected bytes have come.
#[derive(Clone, Copy)]
pub struct Barrier {
    address: u32,
}

impl Barrier {
    /// Bytes of one.
    pub const BYTES: u32 = 8;

    /// That at an address in shared memory, a multiple of 8.
    #[inline(always)]
    pub fn at(address: u32) -> Self {
        Self { address }
    }

    /// Makes it, for `arrivals` a phase. [`publish`] follows, and a barrier of the block.
    ///
    /// # Safety
    /// The address is the block's, and one thread does this.
    #[inline(always)]
    pub unsafe fn init(self, arrivals: u32) {
        // SAFETY: as the caller promises.
        unsafe { hopper::barrier_init(self.address, arrivals) }
    }

    /// One arrival.
    ///
    /// # Safety
    /// The barrier was made.
    #[inline(always)]
    pub unsafe fn arrive(self) {
        // SAFETY: as the caller promises.
        unsafe { hopper::barrier_arrive(self.address) }
    }

    /// One arrival that announces `bytes` of copies.
    ///
    /// # Safety
    /// The barrier was made.
    #[inline(always)]
    pub unsafe fn expect(self, bytes: u32) {
        // SAFETY: as the caller promises.
        unsafe { hopper::barrier_expect(self.address, bytes) }
    }

    /// Waits until the phase of this parity is over; the one before the first counts as of parity 1.
    ///
    /// # Safety
    /// The barrier was made.
    #[inline(always)]
    pub unsafe fn wait(self, parity: u32) {
        // SAFETY: as the caller promises.
        unsafe { hopper::barrier_wait(self.address, parity) }
    }

    /// The address.
    #[inline(always)]
    pub fn address(self) -> u32 {
        self.address
    }
}

/// Shows barriers just made to the engines that copy.
#[inline(always)]
pub fn publish() {
    // SAFETY: a fence.
    unsafe { hopper::barrier_init_fence() }
}

/// A numbered barrier of the block, 1 to 15, for `THREADS` of its threads, whole warps: 0 is that of
/// [`block::sync`](crate::simt::block::sync).
#[derive(Clone, Copy)]
pub struct Named<const THREADS: u32>(pub u32);

impl<const THREADS: u32> Named<THREADS> {
    /// Arrives and waits for the others.
    ///
    /// # Safety
    /// The whole warp is here, and as many come as were promised.
    #[inline(always)]
    pub unsafe fn sync(self) {
        // SAFETY: as the caller promises.
        unsafe { hopper::named_sync(self.0, THREADS) }
    }

    /// Arrives and goes on.
    ///
    /// # Safety
    /// As [`Named::sync`].
    #[inline(always)]
    pub unsafe fn arrive(self) {
        // SAFETY: as the caller promises.
        unsafe { hopper::named_arrive(self.0, THREADS) }
    }
}
