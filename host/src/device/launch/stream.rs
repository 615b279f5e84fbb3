//! The stream of a launch.
use std::ffi::c_void;
use std::marker::PhantomData;

/// A CUDA stream, borrowed from its owner, such as an [`OwnedStream`](crate::OwnedStream). The CPU executor
/// has one stream only, and a launch is done when it returns.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a>(pub(crate) *mut c_void, PhantomData<&'a ()>);

// SAFETY: a stream handle may be used from any thread; it is never dereferenced here.
unsafe impl Send for Stream<'_> {}
// SAFETY: as above.
unsafe impl Sync for Stream<'_> {}

impl Default for Stream<'_> {
    /// The legacy default stream of the device.
    fn default() -> Self {
        Self(std::ptr::null_mut(), PhantomData)
    }
}

impl Stream<'_> {
    /// A `CUstream` (or `cudaStream_t`) that somebody else owns.
    ///
    /// # Safety
    /// It is a stream of the device that it is used with, alive as long as this is and until the work given
    /// to it is done.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self(stream, PhantomData)
    }
}
