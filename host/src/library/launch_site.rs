//! The place of a launch of this library's kernels.
use std::ffi::c_void;

use cuda_std::launch::{AnyElement, Entry, Launcher};

use super::load::library;
use crate::launch::LaunchRecorder;
use crate::{Device, Dtype, Error, Kernels, Launch, Result, Stream};

/// The place of a launch: a device, a stream, a launch shape, and the element type of the kernel.
///
/// The type has no lifetime, so that tables of kernels can be constants: a kernel is a function pointer with
/// this type as its first argument. A `LaunchSite` is used only while the device and the stream that it was
/// made from are borrowed.
#[derive(Clone, Copy)]
pub(crate) struct LaunchSite {
    kernels: &'static Kernels,
    recorder: Option<*const LaunchRecorder>,
    stream: *mut c_void,
    dtype: Dtype,
    shape: Launch,
}

impl LaunchSite {
    /// Returns the site for the kernels of element type `dtype`.
    #[inline]
    pub fn new(device: &Device, dtype: Dtype, shape: Launch, stream: Stream) -> Result<Self> {
        let recorder = device.tag::<LaunchRecorder>();
        let shape = match recorder {
            Some(recorder) => Launch { carveout: recorder.over.carveout.or(shape.carveout), ..shape },
            None => shape,
        };
        let recorder = recorder.map(std::ptr::from_ref);
        Ok(Self { kernels: library(device)?, recorder, stream: stream.as_raw(), dtype, shape })
    }
}

impl Launcher<AnyElement> for LaunchSite {
    type Error = Error;

    #[inline]
    unsafe fn launch(self, entry: &'static Entry, args: &[*const c_void]) -> Result<()> {
        let Some(kernel) = self.dtype.element().and_then(|element| entry.kernel(element)) else {
            let kernel = format!("{}_{}", entry.name, self.dtype);
            return Err(Error::NoKernel { kernel, similar: None });
        };
        if let Some(recorder) = self.recorder {
            // SAFETY: the device that has the recorder is borrowed while the site is used.
            let recorder = unsafe { &*recorder };
            // SAFETY: the caller passes arguments of the kernel's types.
            let shared_bytes = kernel.shared.map_or(0, |shared| unsafe { shared(self.shape.block, args) });
            recorder.note(entry.name, &Launch { shared_bytes, ..self.shape });
        }
        // SAFETY: the stream is borrowed while the site is used.
        let stream = unsafe { Stream::from_raw(self.stream) };
        // SAFETY: the caller passes arguments of the kernel's types, and satisfies its safety conditions.
        unsafe { self.kernels.launch_kernel(kernel, self.shape, stream, args) }
    }
}
