//! Allocation of device memory, and copies.
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

use cust::error::CudaError;
use cust::memory::{CopyDestination, DeviceBuffer};

use super::current::Relaxed;
use super::gpu::Gpu;
use super::raw;
use crate::{Error, Result, Stream};

/// Device memory, which is freed when the value is dropped.
pub(crate) struct Memory {
    gpu: Arc<Gpu>,
    bytes: ManuallyDrop<DeviceBuffer<u8>>,
}

impl Memory {
    /// Allocates `bytes` bytes of uninitialized device memory.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        // In the default capture mode, the driver rejects an allocation during a stream capture. The relaxed
        // mode permits the allocation.
        let (_current, _relaxed) = (gpu.current()?, Relaxed::new());
        // SAFETY: the uninitialized bytes are valid elements, because this crate stores only numbers in the
        // memory, and every bit pattern is a number.
        match unsafe { DeviceBuffer::uninitialized(bytes.max(1)) } {
            Ok(memory) => Ok(Self { gpu: gpu.clone(), bytes: ManuallyDrop::new(memory) }),
            Err(CudaError::OutOfMemory) => Err(Error::OutOfMemory { device: gpu.name.clone(), bytes }),
            Err(error) => Err(raw::failed("cuMemAlloc")(error)),
        }
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.bytes.as_device_ptr().as_raw()
    }

    /// Copies `from` to the start of this memory, which must have at least as many bytes as `from`. The
    /// function blocks until the data is on the device, so launches on every stream can read the data.
    pub fn upload(&mut self, from: &[u8]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let _current = self.gpu.current()?;
        self.bytes.index(..from.len()).copy_from(from).map_err(raw::failed("cuMemcpyHtoD"))?;
        // If the source is pageable memory, `cuMemcpyHtoD` returns when it has copied the data to a staging
        // buffer. The transfer to the device may still run on the legacy default stream. An `OwnedStream` (a
        // non-blocking stream) does not wait for the legacy default stream. Therefore, the host waits for the
        // transfer here.
        // SAFETY: the call needs a valid stream. The null handle means the legacy default stream of the
        // current context.
        raw::check("cuStreamSynchronize", unsafe { raw::cuStreamSynchronize(std::ptr::null_mut()) })
    }

    /// Copies the bytes in `range` from this memory to the host, after all earlier work on the legacy default
    /// stream is done.
    pub fn download(&self, to: &mut [u8], range: Range<usize>) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        let _current = self.gpu.current()?;
        self.bytes.index(range).copy_to(to).map_err(raw::failed("cuMemcpyDtoH"))
    }

    /// Submits to `stream` a copy of the first `bytes` bytes of `from` to the start of this memory. The
    /// function returns before the copy is done.
    ///
    /// # Safety
    /// This memory and `from` must have at least `bytes` bytes each. Both must stay valid until the copy is
    /// done.
    pub unsafe fn copy_from(&self, from: &Self, bytes: usize, stream: Stream) -> Result<()> {
        let _current = self.gpu.current()?;
        // SAFETY: the caller guarantees that `self` and `from` have `bytes` bytes and stay valid until the
        // copy is done.
        raw::check("cuMemcpyDtoDAsync", unsafe {
            raw::cuMemcpyDtoDAsync_v2(self.address(), from.address(), bytes, stream.as_raw())
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.current() else { return };
        let _relaxed = Relaxed::new();
        // SAFETY: the memory is dropped only here.
        unsafe { ManuallyDrop::drop(&mut self.bytes) };
    }
}

/// Converts a device address to a pointer, because tensor views store pointers.
pub(crate) fn pointer(address: u64) -> *mut c_void {
    address as usize as *mut c_void
}
