//! Device memory.
use std::ffi::c_void;

use super::{Cuda, Relaxed, sys};
use crate::{Error, Result, Stream};

impl Cuda {
    /// Device memory, uninitialised.
    pub fn alloc(&self, bytes: usize) -> Result<u64> {
        // A stream that is being captured must not keep its thread from allocating and freeing.
        let (_current, _relaxed) = (self.current()?, Relaxed::new());
        let mut address = 0;
        // SAFETY: writes the address.
        match unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) } {
            sys::OUT_OF_MEMORY => Err(Error::OutOfMemory { device: self.name.clone(), bytes }),
            code => sys::check("cuMemAlloc", code).map(|()| address),
        }
    }

    /// # Safety
    /// `address` is from [`Cuda::alloc`] and no longer used.
    pub unsafe fn free(&self, address: u64) {
        if let Ok(_current) = self.current() {
            let _relaxed = Relaxed::new();
            // SAFETY: as the caller promises.
            unsafe { sys::cuMemFree_v2(address) };
        }
    }

    /// Copies to the device, and waits until all of it is there: no stream has to.
    ///
    /// # Safety
    /// `from` is readable and `to` is device memory, `bytes` long.
    pub unsafe fn upload(&self, to: u64, from: *const c_void, bytes: usize) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: as the caller promises.
        sys::check("cuMemcpyHtoD", unsafe { sys::cuMemcpyHtoD_v2(to, from, bytes) })?;
        // The copy from pageable memory returns when the last of it is staged, which is before it has arrived. The legacy
        // default stream, which it is on, would be waited for by launches there, but not by those on an `OwnedStream`.
        // SAFETY: waits.
        sys::check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
    }

    /// # Safety
    /// `to` is writable and `from` is device memory, `bytes` long.
    pub unsafe fn download(&self, to: *mut c_void, from: u64, bytes: usize) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: as the caller promises.
        sys::check("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(to, from, bytes) })
    }

    /// # Safety
    /// Both are device memory, `bytes` long, until the stream has come past.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize, stream: Stream) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: as the caller promises.
        sys::check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.0) })
    }
}
