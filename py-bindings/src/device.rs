//! From torch's device kind and index to a `oxiwarp::Device` and the stream that torch is using on it.

use crate::shim::{Place, shim};
use libloading::os::unix::Library;
use oxiwarp::{Device, Stream};
use std::ffi::c_int;
use std::fmt::{self, Display};

/// Where a tensor lives, as the user writes it: `cpu`, `cuda:1`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// CPU or CUDA; `None` for any other kind of device.
    pub place: Option<Place>,
    /// Index of a CUDA device.
    pub index: i32,
}

impl Location {
    /// The device that runs the kernel, and torch's current stream there.
    pub fn device_and_stream(self) -> Result<(Device, Stream<'static>), String> {
        match self.place {
            Some(Place::Cpu) => Ok((Device::cpu(), Stream::default())),
            Some(Place::Cuda) => {
                let device = Device::cuda(self.index.max(0) as usize).map_err(|error| error.to_string())?;
                let raw = shim().current_cuda_stream(self.index)?;
                // SAFETY: torch says that this is its current stream on this device; it outlives the launch.
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

/// Version of the CUDA driver as "major.minor", or why there is none.
pub fn driver_version() -> Result<String, String> {
    // SAFETY: loading the driver runs its own initialisers, which is what any CUDA program does.
    let library =
        unsafe { Library::new("libcuda.so.1") }.map_err(|error| format!("no CUDA driver: {error}"))?;
    // SAFETY: cuDriverGetVersion has had this signature since CUDA 2.2.
    let get = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion\0") }
        .map_err(|error| format!("libcuda.so.1 is not a CUDA driver: {error}"))?;
    let mut version = 0;
    // SAFETY: `version` is a valid place for one int.
    let code = unsafe { get(&mut version) };
    std::mem::forget(library); // never unload a driver
    if code != 0 {
        return Err(format!("cuDriverGetVersion failed with error {code}"));
    }
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}
