//! Properties of a GPU, as the driver reports them.
use std::ffi::{CStr, c_int, c_uint, c_void};

use cust::device::DeviceAttribute;

use super::sys;
use crate::Result;

/// Returns the newest CUDA version that the driver supports, as 1000 times the major plus 10 times the minor
/// version.
pub(super) fn driver_version() -> Result<c_int> {
    let mut version = 0;
    // SAFETY: the driver writes one integer to the local variable.
    sys::check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok(version)
}

/// A `CUdevice`.
#[derive(Clone, Copy)]
pub(super) struct Gpu(c_int);

impl Gpu {
    /// Returns the number of GPUs. The driver must be initialized.
    pub fn count() -> Result<usize> {
        let mut count = 0;
        // SAFETY: the driver writes one integer to the local variable.
        sys::check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(count as usize)
    }

    /// Returns GPU number `index`, which must be less than the count.
    pub fn get(index: usize) -> Result<Self> {
        let mut device = 0;
        // SAFETY: the driver writes one integer to `device`.
        sys::check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, index as c_int) })?;
        Ok(Self(device))
    }

    pub fn name(self) -> Result<String> {
        let mut name = [0_u8; 256];
        // SAFETY: the driver writes at most `name.len()` bytes, including a final NUL.
        let code = unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, self.0) };
        sys::check("cuDeviceGetName", code)?;
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Returns the compute capability as `(major, minor)`, for example `(9, 0)`.
    pub fn capability(self) -> Result<(u32, u32)> {
        let major = self.attribute(DeviceAttribute::ComputeCapabilityMajor)?;
        Ok((major, self.attribute(DeviceAttribute::ComputeCapabilityMinor)?))
    }

    /// Returns the maximum bytes of shared memory per block, with opt-in.
    pub fn max_shared_bytes(self) -> Result<u32> {
        self.numbered_attribute(sys::MAX_SHARED_OPT_IN)
    }

    /// Returns the size of the L2 cache in bytes.
    pub fn l2_bytes(self) -> Result<u32> {
        self.attribute(DeviceAttribute::L2CacheSize)
    }

    pub fn multiprocessors(self) -> Result<u32> {
        self.attribute(DeviceAttribute::MultiprocessorCount)
    }

    fn attribute(self, which: DeviceAttribute) -> Result<c_uint> {
        self.numbered_attribute(which as c_int)
    }

    fn numbered_attribute(self, which: c_int) -> Result<c_uint> {
        let mut value = 0;
        // SAFETY: the driver writes one integer to the local variable.
        let code = unsafe { sys::cuDeviceGetAttribute(&mut value, which, self.0) };
        sys::check("cuDeviceGetAttribute", code)?;
        Ok(value as c_uint)
    }

    /// Retains and returns the primary context, the context that torch uses too. It stays retained until the
    /// process ends. This function does not make the context current.
    pub fn primary_context(self) -> Result<*mut c_void> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver writes one pointer to `context`.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, self.0) };
        sys::check("cuDevicePrimaryCtxRetain", code)?;
        Ok(context)
    }
}
