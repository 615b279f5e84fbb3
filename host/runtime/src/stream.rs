//! The stream of a launch.
use std::ffi::c_void;
use std::marker::PhantomData;

/// A CUDA stream, borrowed from its owner, for example an [`OwnedStream`](crate::OwnedStream).
///
/// The CPU executor (which runs kernels on the host) ignores the stream of a launch, because it completes
/// each launch before the launch function returns. Pass [`Stream::default`] to launches on the CPU executor.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a>(*mut c_void, PhantomData<&'a ()>);

// SAFETY: the driver allows the use of stream handles from any thread, and this type never dereferences the
// handle.
unsafe impl Send for Stream<'_> {}
// SAFETY: the driver allows concurrent use of stream handles.
unsafe impl Sync for Stream<'_> {}

impl Default for Stream<'_> {
    /// Returns the legacy default stream of a GPU. On the CPU executor, the returned value means "no stream".
    fn default() -> Self {
        Self(std::ptr::null_mut(), PhantomData)
    }
}

impl Stream<'_> {
    /// Wraps a `CUstream` (or `cudaStream_t`) that other code owns.
    ///
    /// # Safety
    /// The stream must belong to the device that it is used with. The stream must stay valid during the
    /// lifetime of the returned value, and until all work on the stream is done.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self(stream, PhantomData)
    }

    /// Returns the `CUstream`.
    pub fn as_raw(self) -> *mut c_void {
        self.0
    }
}

impl<'a> From<&'a cust::stream::Stream> for Stream<'a> {
    /// Borrows a stream of the crate `cust`. The stream must belong to the GPU that it is used with.
    fn from(stream: &'a cust::stream::Stream) -> Self {
        Self(stream.as_inner().cast(), PhantomData)
    }
}
