//! TMA copies between global and shared memory. Each copy uses a tensor map.
use super::barrier::Barrier;
use crate::arch::hopper;
pub use crate::matrix::tensor_map::TensorMap;

/// The address of a tensor map.
#[derive(Clone, Copy)]
pub struct Map {
    address: u64,
}

impl Map {
    /// Returns the address of kernel argument `NUMBER`, counted from 0. The crate `cuda_builder` edits the
    /// PTX so that this argument has the alignment that TMA requires.
    ///
    /// # Safety
    /// The argument is a [`TensorMap`].
    #[inline(always)]
    pub unsafe fn argument<const NUMBER: u32>() -> Self {
        Self { address: hopper::argument::<NUMBER>() }
    }

    /// Prefetches the tensor map into the descriptor cache of the TMA unit.
    ///
    /// # Safety
    /// `self` is the address of a tensor map.
    #[inline(always)]
    pub unsafe fn prefetch(self) {
        // SAFETY: the caller ensures that `self` is the address of a tensor map.
        unsafe { hopper::tensor_map_prefetch(self.address) }
    }

    /// Starts a TMA copy from a tensor in global memory to address `to` in shared memory. It copies the box
    /// at the coordinates `origin` of the tensor. The mbarrier `barrier` counts the copied bytes. Elements
    /// outside the tensor become zero in shared memory.
    ///
    /// # Safety
    /// - `self` is the address of a tensor map of four dimensions.
    /// - The box fits into the block's shared memory at `to`. The address is aligned as the map's swizzle
    ///   requires. No other thread uses these bytes during the copy.
    /// - `barrier` expects the number of bytes of the box.
    /// - Only one thread makes the call.
    #[inline(always)]
    pub unsafe fn copy(self, to: u32, origin: [u32; 4], barrier: Barrier) {
        // SAFETY: the caller ensures that the map has four dimensions and that the box fits at `to`.
        unsafe { hopper::tensor_copy(to, self.address, origin, barrier.address()) }
    }

    /// Starts a TMA copy of the box at `from` in shared memory to the coordinates `origin` of the tensor.
    /// Elements outside the tensor are not written. The calling thread must call [`close_stores`] and
    /// [`wait_for_stores`] before it returns. It must also call both functions before any thread overwrites
    /// the box.
    ///
    /// # Safety
    /// `self` is the address of a tensor map of four dimensions. The box at `from` has the swizzle of the
    /// map, and [`publish_shared`](super::publish_shared) made its bytes visible to TMA. No other thread
    /// accesses the elements of the tensor that the box overwrites.
    #[inline(always)]
    pub unsafe fn store(self, from: u32, origin: [u32; 4]) {
        // SAFETY: the caller ensures that the map has four dimensions and that the box at `from` is complete.
        unsafe { hopper::tensor_store(from, self.address, origin) }
    }
}

/// Commits TMA stores as one bulk group (`cp.async.bulk.commit_group`). The group contains the stores that
/// the thread has started since its last call of this function.
#[inline(always)]
pub fn close_stores() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { hopper::bulk_commit() }
}

/// Waits until the committed TMA stores of the thread have read their data from shared memory.
#[inline(always)]
pub fn wait_for_stores() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { hopper::bulk_wait_read() }
}
