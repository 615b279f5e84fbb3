//! Converts torch's device type and device index to an [`oxiwarp::Device`], and finds torch's current CUDA
//! stream on this device.

use crate::shim::{Place, shim};
use libloading::os::unix::Library;
use oxiwarp::{Device, Stream};
use std::ffi::c_int;
use std::fmt::{self, Display};

/// The device of a tensor, displayed as in Python: `cpu`, `cuda:1`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// CPU or CUDA; `None` for any other kind of device.
    pub place: Option<Place>,
    /// Index of the CUDA device, or -1.
    pub index: i32,
}

impl Location {
    /// Returns the device of the tensors, on which kernels run, and torch's current stream on this device.
    pub fn device_and_stream(self) -> Result<(Device, Stream<'static>), String> {
        match self.place {
            Some(Place::Cpu) => Ok((Device::cpu(), Stream::default())),
            Some(Place::Cuda) => {
                let device = Device::cuda(self.index.max(0) as usize).map_err(|error| error.to_string())?;
                let raw = shim().current_cuda_stream(self.index)?;
                // SAFETY: `from_raw` requires a valid stream of this device. torch returned `raw` for this
                // device and keeps the stream alive.
                Ok((device, unsafe { Stream::from_raw(raw) }))
            }
            None => Err(format!("expected a CPU or a CUDA tensor, got one on {self}")),
        }
    }
}

impl Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(Place::Cpu) => f.write_str("cpu"),
            Some(Place::Cuda) => write!(f, "cuda:{}", self.index),
            None => f.write_str("another kind of device"),
        }
    }
}

/// Returns the newest CUDA version that the driver supports, as "major.minor". If no driver can be loaded,
/// returns the reason.
pub fn driver_version() -> Result<String, String> {
    // SAFETY: the initializers of the driver library have no preconditions.
    let library =
        unsafe { Library::new("libcuda.so.1") }.map_err(|error| format!("no CUDA driver: {error}"))?;
    // SAFETY: cuDriverGetVersion has had this signature since CUDA 2.2.
    let get = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion\0") }
        .map_err(|error| format!("libcuda.so.1 is not a CUDA driver: {error}"))?;
    let mut version = 0;
    // SAFETY: `version` is valid for a write of one int.
    let code = unsafe { get(&mut version) };
    std::mem::forget(library); // never unload a driver
    if code != 0 {
        return Err(format!("cuDriverGetVersion failed with error {code}"));
    }
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}
