//! TMA copies between global and shared memory. Most copies use a tensor map, which describes the tensor in
//! global memory.
use super::barrier::Barrier;
use crate::arch::hopper;
pub use crate::matrix::tensor_map::TensorMap;
use crate::simt::cluster;

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

    /// Returns the tensor map at `map` in global memory. The address `map` must be a multiple of 64. The type
    /// [`TensorMap`] does not guarantee this, because its alignment is smaller.
    ///
    /// # Safety
    /// `map` points to a tensor map that no thread changes during the launch.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn at(map: *const TensorMap) -> Self {
        Self { address: hopper::tensor_map_at(map.expose_provenance() as u64) }
    }

    /// Prefetches this tensor map into the descriptor cache of the TMA unit.
    ///
    /// # Safety
    /// `self` is the address of a tensor map.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn prefetch(self) {
        // SAFETY: the instruction reads the tensor map at `self`. The caller guarantees that `self` is the
        // address of a tensor map.
        unsafe { hopper::tensor_map_prefetch(self.address) }
    }

    /// Starts a TMA copy of a box of the tensor in global memory to address `to` in shared memory. The box
    /// starts at the coordinates `origin` of the tensor. The mbarrier `barrier` counts the copied bytes.
    /// Elements of the box outside the tensor become zero in shared memory.
    ///
    /// # Safety
    /// - `self` is the address of a tensor map of `D` dimensions, 1 to 5.
    /// - The box fits into the block's shared memory at `to`. `to` is aligned as the map's swizzle requires.
    ///   No thread uses the bytes of the box during the copy.
    /// - `barrier` expects the number of bytes of the box.
    /// - Only one thread calls the function for each copy.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy<const D: usize>(self, to: u32, origin: [u32; D], barrier: Barrier) {
        // SAFETY: the copy reads a box (the part that one copy moves) of the tensor and writes it to shared
        // memory at `to`. The caller guarantees that the map has `D` dimensions and that the box fits at
        // `to`.
        unsafe { hopper::tensor_copy(to, self.address, origin, barrier.address()) }
    }

    /// Starts the same copy as [`Map::copy`], but to all blocks of the cluster whose bit is set in `blocks`.
    /// In each of these blocks, the copy writes to the address `to`. The mbarrier at the address of `barrier`
    /// in the same block counts the copied bytes.
    ///
    /// # Safety
    /// The requirements of [`Map::copy`] apply in each of these blocks.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn multicast<const D: usize>(self, to: u32, origin: [u32; D], barrier: Barrier, blocks: u16) {
        // SAFETY: the copy reads a box (the part that one copy moves) of the tensor and writes it to shared
        // memory of several blocks. The caller guarantees that the map has `D` dimensions and that the box
        // fits in each of these blocks.
        unsafe { hopper::tensor_multicast(to, self.address, origin, barrier.address(), blocks) }
    }

    /// Starts a TMA copy of the box at `from` in shared memory to the coordinates `origin` of the tensor in
    /// global memory. Elements of the box outside the tensor are not written. Before the calling thread
    /// returns from the kernel, it must call [`close_stores`] and then [`wait_for_stores`]. It must also call
    /// both before any thread overwrites the box.
    ///
    /// # Safety
    /// `self` is the address of a tensor map of `D` dimensions. The box at `from` is swizzled as the map
    /// says, and [`publish_shared`](super::publish_shared) made its bytes visible to TMA. No other thread
    /// accesses the elements of the tensor that the box overwrites.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn store<const D: usize>(self, from: u32, origin: [u32; D]) {
        // SAFETY: the copy reads a box at `from` in shared memory and writes it to the tensor. The caller
        // guarantees that the map has `D` dimensions and that all bytes of the box are visible to TMA.
        unsafe { hopper::tensor_store(from, self.address, origin) }
    }

    /// Starts the same copy from shared memory as [`Map::store`], but adds the copied elements to the
    /// elements of the tensor. Several blocks may add to the same elements.
    ///
    /// # Safety
    /// The requirements of [`Map::store`] apply, except that other threads may add to the elements.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn add<const D: usize>(self, from: u32, origin: [u32; D]) {
        // SAFETY: the caller satisfies the requirements.
        unsafe { hopper::tensor_add(from, self.address, origin) }
    }
}

/// Starts a copy of `bytes` bytes of global memory to address `to` in shared memory (`cp.async.bulk`). The
/// mbarrier `barrier` counts the copied bytes.
///
/// # Safety
/// `from` points to `bytes` readable bytes. `to`, `from` and `bytes` are multiples of 16. No thread uses the
/// bytes at `to` during the copy, and `barrier` expects `bytes` bytes.
#[inline(always)]
#[track_caller]
pub unsafe fn copy_bytes(to: u32, from: *const u8, bytes: u32, barrier: Barrier) {
    // SAFETY: the caller passes valid, aligned addresses.
    unsafe { hopper::bulk_copy(to, from, bytes, barrier.address()) }
}

/// Starts a copy of `bytes` bytes at address `from` in shared memory to global memory. As for [`Map::store`],
/// the calling thread must then call [`close_stores`] and [`wait_for_stores`].
///
/// # Safety
/// `to` points to `bytes` writable bytes. `to`, `from` and `bytes` are multiples of 16.
/// [`publish_shared`](super::publish_shared) made the bytes at `from` visible.
#[inline(always)]
#[track_caller]
pub unsafe fn store_bytes(to: *mut u8, from: u32, bytes: u32) {
    // SAFETY: the caller passes valid, aligned addresses.
    unsafe { hopper::bulk_store(to, from, bytes) }
}

/// Starts a copy of `bytes` bytes at address `from` in shared memory to address `to` of block `rank` of the
/// cluster. The mbarrier of that block at the address of `barrier` counts the copied bytes.
///
/// # Safety
/// `to`, `from` and `bytes` are multiples of 16. [`publish_shared`](super::publish_shared) made the bytes at
/// `from` visible. Block `rank` does not exit before the bytes arrive.
#[inline(always)]
#[track_caller]
pub unsafe fn send_bytes(to: u32, from: u32, bytes: u32, barrier: Barrier, rank: u32) {
    let [to, barrier] = [to, barrier.address()].map(|address| cluster::map_address(address, rank));
    // SAFETY: the caller passes valid, aligned addresses.
    unsafe { hopper::bulk_send(to, from, bytes, barrier) }
}

/// Commits TMA stores as one bulk group (`cp.async.bulk.commit_group`). The group contains the stores that
/// the calling thread has started since its last call of this function.
#[inline(always)]
#[track_caller]
pub fn close_stores() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { hopper::bulk_commit() }
}

/// Waits until all bulk groups of the calling thread, except at most the last `PENDING` ones, have read their
/// data from shared memory (`cp.async.bulk.wait_group.read`). Their data may not be in global memory yet: see
/// [`wait_for_written_groups`].
#[inline(always)]
#[track_caller]
pub fn wait_for_groups<const PENDING: u32>() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { hopper::bulk_wait_pending::<PENDING>() }
}

/// Waits until all TMA stores that the calling thread has committed have read their data from shared memory
/// (`cp.async.bulk.wait_group.read 0`). Shared memory may then be overwritten, but the data may not be in
/// global memory yet. The calling thread must call [`wait_for_writes`] before it reads the data there, and
/// before it signals to another thread that the data is there.
#[inline(always)]
#[track_caller]
pub fn wait_for_stores() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { hopper::bulk_wait_read() }
}

/// Waits until all bulk groups of the calling thread, except at most the last `PENDING` ones, have written
/// their data to global memory (`cp.async.bulk.wait_group`). The calling thread then sees this data in global
/// memory.
#[inline(always)]
#[track_caller]
pub fn wait_for_written_groups<const PENDING: u32>() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { hopper::bulk_wait_write_pending::<PENDING>() }
}

/// Waits until all TMA stores that the calling thread has committed have written their data to global memory
/// (`cp.async.bulk.wait_group 0`). The calling thread sees this data. Other threads see it after the calling
/// thread has also executed a fence, or at the end of the kernel.
#[inline(always)]
#[track_caller]
pub fn wait_for_writes() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { hopper::bulk_wait_write() }
}
