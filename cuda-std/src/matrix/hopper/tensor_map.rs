//! TMA copies between global and shared memory. Each copy uses a tensor map, which describes the tensor in
//! global memory.
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
    /// PTX so that this argument is aligned to 64 bytes, as TMA requires.
    ///
    /// # Safety
    /// Kernel argument `NUMBER` is a [`TensorMap`].
    #[inline(always)]
    pub unsafe fn argument<const NUMBER: u32>() -> Self {
        Self { address: hopper::argument::<NUMBER>() }
    }

    /// Prefetches this tensor map into the descriptor cache of the TMA unit.
    ///
    /// # Safety
    /// `self` is the address of a tensor map.
    #[inline(always)]
    pub unsafe fn prefetch(self) {
        // SAFETY: the caller ensures that `self` is the address of a tensor map.
        unsafe { hopper::tensor_map_prefetch(self.address) }
    }

    /// Starts a TMA copy of a box of the tensor in global memory to address `to` in shared memory. The box
    /// starts at the coordinates `origin` of the tensor. The mbarrier `barrier` counts the copied bytes.
    /// Elements of the box outside the tensor become zero in shared memory.
    ///
    /// # Safety
    /// - `self` is the address of a tensor map of four dimensions.
    /// - The box fits into the block's shared memory at `to`. `to` is aligned as the map's swizzle requires.
    ///   No thread uses the bytes of the box during the copy.
    /// - `barrier` expects the number of bytes of the box.
    /// - Only one thread calls the function for each copy.
    #[inline(always)]
    pub unsafe fn copy(self, to: u32, origin: [u32; 4], barrier: Barrier) {
        // SAFETY: the caller ensures that the map has four dimensions and that the box fits at `to`.
        unsafe { hopper::tensor_copy(to, self.address, origin, barrier.address()) }
    }

    /// Starts a TMA copy of the box at `from` in shared memory to the coordinates `origin` of the tensor in
    /// global memory. Elements of the box outside the tensor are not written. Before the calling thread
    /// returns from the kernel, it must call [`close_stores`] and then [`wait_for_stores`]. It must also call
    /// both before any thread overwrites the box.
    ///
    /// # Safety
    /// `self` is the address of a tensor map of four dimensions. The box at `from` is swizzled as the map
    /// says, and [`publish_shared`](super::publish_shared) made its bytes visible to TMA. No other thread
    /// accesses the elements of the tensor that the box overwrites.
    #[inline(always)]
    pub unsafe fn store(self, from: u32, origin: [u32; 4]) {
        // SAFETY: the caller ensures that the map has four dimensions and that all bytes of the box at `from`
        // are visible to TMA.
        unsafe { hopper::tensor_store(from, self.address, origin) }
    }
}

/// Commits TMA stores as one bulk group (`cp.async.bulk.commit_group`). The group contains the stores that
/// the calling thread has started since its last call of this function.
#[inline(always)]
pub fn close_stores() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { hopper::bulk_commit() }
}

/// Waits until all TMA stores that the calling thread has committed have read their data from shared memory.
#[inline(always)]
pub fn wait_for_stores() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { hopper::bulk_wait_read() }
}
