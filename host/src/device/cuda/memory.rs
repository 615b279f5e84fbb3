//! Allocation of device memory, and copies.
use std::ffi::c_void;

use super::context::{Cuda, Relaxed};
use super::sys;
use crate::device::launch::Stream;
use crate::{Error, Result};

impl Cuda {
    /// Allocates `bytes` bytes of uninitialized device memory.
    pub fn alloc(&self, bytes: usize) -> Result<u64> {
        // Without relaxed mode, a stream capture in this thread would forbid the allocation.
        let (_current, _relaxed) = (self.current()?, Relaxed::new());
        let mut address = 0;
        // SAFETY: the driver writes one integer to `address`.
        match unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) } {
            sys::OUT_OF_MEMORY => Err(Error::OutOfMemory { device: self.name.clone(), bytes }),
            code => sys::check("cuMemAlloc", code).map(|()| address),
        }
    }

    /// Frees device memory.
    ///
    /// # Safety
    /// `address` must come from [`Cuda::alloc`] and must not be used afterwards.
    pub unsafe fn free(&self, address: u64) {
        if let Ok(_current) = self.current() {
            let _relaxed = Relaxed::new();
            // SAFETY: the caller guarantees that the addresses are valid for this call.
            unsafe { sys::cuMemFree_v2(address) };
        }
    }

    /// Copies from host to device, and waits until the data is on the device. Launches on any stream may
    /// then read it.
    ///
    /// # Safety
    /// `from` must be readable and `to` must be device memory, both for `bytes` bytes.
    pub unsafe fn upload(&self, to: u64, from: *const c_void, bytes: usize) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the caller guarantees that the addresses are valid for this call.
        sys::check("cuMemcpyHtoD", unsafe { sys::cuMemcpyHtoD_v2(to, from, bytes) })?;
        // `cuMemcpyHtoD` from pageable memory returns when the data is staged, before the transfer has
        // ended. The copy runs on the legacy default stream. Launches on an `OwnedStream` would not wait
        // for it.
        // SAFETY: the null handle is the legacy default stream of the current context.
        sys::check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
    }

    /// Copies from device to host.
    ///
    /// # Safety
    /// `to` must be writable and `from` must be device memory, both for `bytes` bytes.
    pub unsafe fn download(&self, to: *mut c_void, from: u64, bytes: usize) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the caller guarantees that the addresses are valid for this call.
        sys::check("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(to, from, bytes) })
    }

    /// Copies within the device, on `stream`.
    ///
    /// # Safety
    /// Both must be device memory for `bytes` bytes, and must stay valid until the copy is done.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize, stream: Stream) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the caller guarantees that the addresses are valid for this call.
        sys::check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.0) })
    }
}
