//! The context of a launch of this library's kernels, such as device and stream.
use std::ffi::c_void;

use cuda_std::launch::{AnyElement, Entry, Launcher};

use super::load::library;
use crate::launch::LaunchRecorder;
use crate::{Device, Dtype, Error, Kernels, Launch, Result, Stream};

/// The context of a launch: a device, a stream, a launch shape, and the element type of the kernel.
///
/// Ops list their kernels in constant tables of function pointers. Each of these functions launches a kernel,
/// and has a `LaunchSite` as its first parameter. To keep the types of these tables simple, `LaunchSite` has
/// no lifetime parameter, and stores raw pointers. A `LaunchSite` is used only while the device and the
/// stream from which it was made are borrowed.
#[derive(Clone, Copy)]
pub(crate) struct LaunchSite {
    kernels: &'static Kernels,
    recorder: Option<*const LaunchRecorder>,
    stream: *mut c_void,
    dtype: Dtype,
    shape: Launch,
}

impl LaunchSite {
    /// Returns the launch context for kernels of element type `dtype`.
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
        if let Some(recorder) = self.recorder {
            let kernel = self.dtype.element().and_then(|element| entry.kernel(element));
            // SAFETY: the caller passes arguments of the kernel's types.
            let shared_bytes =
                kernel.and_then(|kernel| unsafe { kernel.shared_bytes(self.shape.block, args) });
            // SAFETY: the code dereferences the pointer to the recorder. The pointer is valid, because the
            // device owns the recorder, and the device is borrowed while this `LaunchSite` is used.
            let recorder = unsafe { &*recorder };
            recorder.note(entry.name, &Launch { shared_bytes: shared_bytes.unwrap_or(0), ..self.shape });
        }
        // SAFETY: the stream is borrowed while this `LaunchSite` is used.
        let stream = unsafe { Stream::from_raw(self.stream) };
        // SAFETY: `launch` requires arguments of the types that the kernel declares, and the kernel's safety
        // requirements. The caller guarantees both.
        unsafe { self.kernels.on_dtype(self.dtype, stream, self.shape).launch(entry, args) }
    }
}
