//! Tensor maps: descriptors of tensors in global memory, and the TMA copies that use them.
use super::barrier::Barrier;
use crate::arch::hopper;

/// A `CUtensorMap`, created by the driver: 128 bytes that a kernel receives as an argument. TMA reads the map
/// at the address of the kernel argument. A kernel therefore takes this address and never copies the value.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct TensorMap([u64; 16]);

/// The address of a tensor map.
#[derive(Clone, Copy)]
pub struct Map {
    address: u64,
}

impl Map {
    /// Returns the address of kernel argument `NUMBER`, counted from 0. `cuda_builder` gives this argument
    /// the alignment that TMA requires.
    ///
    /// # Safety
    /// The argument is a [`TensorMap`].
    #[inline(always)]
    pub unsafe fn argument<const NUMBER: u32>() -> Self {
        Self { address: hopper::argument::<NUMBER>() }
    }

    /// Prefetches the tensor map into the descriptor cache of TMA.
    ///
    /// # Safety
    /// The address is that of a tensor map.
    #[inline(always)]
    pub unsafe fn prefetch(self) {
        // SAFETY: the caller promises that the address is that of a tensor map.
        unsafe { hopper::tensor_map_prefetch(self.address) }
    }

    /// Starts a copy of the box at coordinates `origin` to address `to` in shared memory. `barrier` counts
    /// the copied bytes. Elements outside the tensor become zero.
    ///
    /// # Safety
    /// - The address is that of a tensor map of four dimensions.
    /// - The bytes of the box at `to` lie in the block's shared memory, aligned as the map's swizzle
    ///   requires. No other thread uses them during the copy.
    /// - `barrier` expects these bytes.
    /// - One thread makes the call.
    #[inline(always)]
    pub unsafe fn copy(self, to: u32, origin: [u32; 4], barrier: Barrier) {
        // SAFETY: the caller promises a map of four dimensions and the bytes of the box at `to`.
        unsafe { hopper::tensor_copy(to, self.address, origin, barrier.address()) }
    }

    /// Starts a copy of a box at `from` in shared memory to coordinates `origin`. Elements outside the tensor
    /// are not written. The thread must call [`close_stores`] and [`wait_for_stores`] before the box is
    /// overwritten and before the thread returns.
    ///
    /// # Safety
    /// The address is that of a tensor map of four dimensions. The box is at `from`, swizzled as the map
    /// says, and [`publish_shared`](super::publish_shared) made it visible. No other thread accesses that
    /// part of the tensor.
    #[inline(always)]
    pub unsafe fn store(self, from: u32, origin: [u32; 4]) {
        // SAFETY: the caller promises a map of four dimensions and a complete box at `from`.
        unsafe { hopper::tensor_store(from, self.address, origin) }
    }
}

/// Commits the stores that the thread has started since the last call as one bulk group.
#[inline(always)]
pub fn close_stores() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { hopper::bulk_commit() }
}

/// Waits until the committed stores of the thread have read their data from shared memory.
#[inline(always)]
pub fn wait_for_stores() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { hopper::bulk_wait_read() }
}
