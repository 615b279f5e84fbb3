//! Tensor maps: what the copy engine knows of a tensor in global memory.
use super::barrier::Barrier;
use crate::arch::hopper;

/// A `CUtensorMap`, made by the driver: 128 bytes that a kernel has as an argument. The engine reads it where the launch
/// put it, so a kernel asks for its address and leaves the value alone.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct TensorMap([u64; 16]);

/// The address of a tensor map.
#[derive(Clone, Copy)]
pub struct Map {
    address: u64,
}

impl Map {
    /// That of argument `NUMBER` of the kernel, counted from 0; `cuda_builder` aligns it as the engine wants it.
    ///
    /// # Safety
    /// The argument is a [`TensorMap`].
    #[inline(always)]
    pub unsafe fn argument<const NUMBER: u32>() -> Self {
        Self { address: hopper::argument::<NUMBER>() }
    }

    /// Fetches it into the engine's cache.
    ///
    /// # Safety
    /// The address is that of a tensor map.
    #[inline(always)]
    pub unsafe fn prefetch(self) {
        // SAFETY: as the caller promises.
        unsafe { hopper::tensor_map_prefetch(self.address) }
    }

    /// Begins to copy the box at `origin` to `to` in shared memory; its bytes count at `barrier`. Zeros stand for what
    /// lies outside the tensor.
    ///
    /// # Safety
    /// The address is that of a map of four dimensions; the box's bytes at `to`, aligned as its swizzle asks, are the
    /// block's and nobody else uses them; the barrier expects them. One thread does this.
    #[inline(always)]
    pub unsafe fn copy(self, to: u32, origin: [u32; 4], barrier: Barrier) {
        // SAFETY: as the caller promises.
        unsafe { hopper::tensor_copy(to, self.address, origin, barrier.address()) }
    }

    /// Begins to copy a box at `from` in shared memory to `origin`; what lies outside the tensor stays as it is. The thread
    /// [`close_stores`] and [`wait_for_stores`] before the box is written again, and before it ends.
    ///
    /// # Safety
    /// The address is that of a map of four dimensions; the box is at `from`, swizzled as the map says, and
    /// [`publish_shared`](super::publish_shared) followed; nobody else uses that part of the tensor.
    #[inline(always)]
    pub unsafe fn store(self, from: u32, origin: [u32; 4]) {
        // SAFETY: as the caller promises.
        unsafe { hopper::tensor_store(from, self.address, origin) }
    }
}

/// Closes the group of stores that the thread has begun since the last.
#[inline(always)]
pub fn close_stores() {
    // SAFETY: it concerns the thread alone.
    unsafe { hopper::bulk_commit() }
}

/// Waits until the thread's stores have read all of shared memory that they copy.
#[inline(always)]
pub fn wait_for_stores() {
    // SAFETY: as above.
    unsafe { hopper::bulk_wait_read() }
}
