//! Allocation of device memory, and copies.
use std::ffi::c_void;

use super::context::{Cuda, Relaxed};
use super::sys;
use crate::device::launch::Stream;
use crate::{Error, Result};

impl Cuda {
    /// Allocates `bytes` bytes of uninitialized device memory.
    pub fn alloc(&self, bytes: usize) -> Result<u64> {
        // A stream capture in this thread would otherwise forbid the allocation, so use the relaxed mode.
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
            // SAFETY: the caller guarantees that `address` came from `alloc` and is not used afterwards.
            unsafe { sys::cuMemFree_v2(address) };
        }
    }

    /// Copies from host to device. It blocks until the data is on the device, so that launches on every
    /// stream can read the data.
    ///
    /// # Safety
    /// `from` must be readable and `to` must be device memory, both for `bytes` bytes.
    pub unsafe fn upload(&self, to: u64, from: *const c_void, bytes: usize) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the caller guarantees that both addresses are valid for `bytes` bytes.
        sys::check("cuMemcpyHtoD", unsafe { sys::cuMemcpyHtoD_v2(to, from, bytes) })?;
        // From pageable memory, `cuMemcpyHtoD` returns when it has copied the data to a staging buffer. The
        // transfer to the device may still run on the legacy default stream. An `OwnedStream` does not wait
        // for that stream, so wait for the transfer here.
        // SAFETY: the null handle is the legacy default stream of the current context.
        sys::check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
    }

    /// Copies from device to host, after earlier work on the legacy default stream.
    ///
    /// # Safety
    /// `to` must be writable and `from` must be device memory, both for `bytes` bytes.
    pub unsafe fn download(&self, to: *mut c_void, from: u64, bytes: usize) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the caller guarantees that both addresses are valid for `bytes` bytes.
        sys::check("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(to, from, bytes) })
    }

    /// Copies within the device, on `stream`. The function returns before the copy is done.
    ///
    /// # Safety
    /// `to` and `from` must be device memory of `bytes` bytes, and must stay valid until the copy is done.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize, stream: Stream) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the caller guarantees that both addresses are valid until the copy is done.
        sys::check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.0) })
    }
}
