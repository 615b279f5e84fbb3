//! Streams, events and CUDA graphs that Rust code owns. Benchmarks and programs without torch use these
//! types.
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use cust::event::EventFlags;

use super::gpu::Gpu;
use super::raw;
use crate::{Error, Result, Stream};

/// A stream, event or graph of a GPU. The driver can destroy such an object only if the GPU's context is
/// current. When dropped, this value therefore first makes the context current.
struct Owned<T> {
    gpu: Arc<Gpu>,
    value: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    fn new(gpu: &Arc<Gpu>, value: T) -> Self {
        Self { gpu: gpu.clone(), value: ManuallyDrop::new(value) }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.current() {
            // SAFETY: the value is dropped only here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A stream that oxiwarp creates. It does not synchronize with the legacy default stream.
pub struct OwnedStream(Owned<cust::stream::Stream>);

/// A CUDA event, which was recorded on a stream.
pub struct Event(Owned<cust::event::Event>);

/// An executable CUDA graph of captured launches.
pub struct Graph(Owned<GraphExec>);

/// A `CUgraphExec`.
struct GraphExec(*mut c_void);

// SAFETY: a `GraphExec` is a driver handle, which the driver allows any thread to use.
unsafe impl Send for GraphExec {}
// SAFETY: the driver allows concurrent use of its handles.
unsafe impl Sync for GraphExec {}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: this value is the only owner of the graph, so no code uses the graph after it is destroyed
        // here.
        unsafe { raw::cuGraphExecDestroy(self.0) };
    }
}

/// Converts a driver handle to a stream of the crate `cust`. `cust` has no function for this conversion.
///
/// # Safety
/// `handle` must be a stream that no other code destroys.
unsafe fn owned_stream(handle: *mut c_void) -> cust::stream::Stream {
    const {
        assert!(size_of::<cust::stream::Stream>() == size_of::<*mut c_void>());
    }
    // SAFETY: in `cust` 0.3.2, the only field of `Stream` is the driver handle. Both types have the same
    // size, so a `Stream` has the same bytes as its handle.
    unsafe { std::mem::transmute(handle) }
}

impl OwnedStream {
    /// Creates a stream on this GPU.
    pub(crate) fn on(gpu: &Arc<Gpu>) -> Result<Self> {
        let _current = gpu.current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver writes one handle to the local variable.
        let code = unsafe { raw::cuStreamCreateWithPriority(&mut handle, raw::NON_BLOCKING, 0) };
        raw::check("cuStreamCreate", code)?;
        // SAFETY: the handle is new.
        Ok(Self(Owned::new(gpu, unsafe { owned_stream(handle) })))
    }

    /// Returns the stream for use in launches. The result borrows `self`, so `self` must live longer than the
    /// result. Therefore, the following code does not compile:
    ///
    /// ```compile_fail,E0716
    /// # let device = oxiwarp_runtime::Device::cpu();
    /// let stream = oxiwarp_runtime::OwnedStream::new(&device)?.as_stream();
    /// let copy = stream;
    /// # Ok::<(), oxiwarp_runtime::Error>(())
    /// ```
    pub fn as_stream(&self) -> Stream<'_> {
        Stream::from(self.as_cust())
    }

    /// Returns the stream of `cust`.
    pub fn as_cust(&self) -> &cust::stream::Stream {
        &self.0.value
    }

    /// Returns the driver's handle.
    fn raw(&self) -> *mut c_void {
        self.as_cust().as_inner().cast()
    }

    /// Blocks until all work submitted to the stream is done.
    ///
    /// # Errors
    /// Returns a driver error if a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.0.gpu.current()?;
        self.as_cust().synchronize().map_err(raw::failed("cuStreamSynchronize"))
    }

    /// Captures the launches that the function `launches` submits to the stream, and returns them as a CUDA
    /// graph. The GPU executes the captured launches only when the graph is launched.
    ///
    /// # Errors
    /// Returns the error of `launches`, or a driver error if a call cannot be captured.
    pub fn capture(&self, launches: impl FnOnce(Stream) -> Result<()>) -> Result<Graph> {
        let _current = self.0.gpu.current()?;
        // SAFETY: the call needs a valid stream, and `self` owns this stream. The guard `Capture` ends the
        // capture, also after an error.
        raw::check("cuStreamBeginCapture", unsafe {
            raw::cuStreamBeginCapture_v2(self.raw(), raw::THREAD_LOCAL)
        })?;
        let mut capture = Capture { stream: self.raw(), graph: std::ptr::null_mut(), open: true };
        launches(self.as_stream())?;
        raw::check("cuStreamEndCapture", capture.end())?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the driver writes one handle to `exec`. The capture has ended, so the graph is complete.
        let code = unsafe { raw::cuGraphInstantiateWithFlags(&mut exec, capture.graph, 0) };
        raw::check("cuGraphInstantiate", code)?;
        Ok(Graph(Owned::new(&self.0.gpu, GraphExec(exec))))
    }
}

/// Guard for a stream capture. When dropped, the guard ends the capture if it is still open, and destroys the
/// captured graph.
struct Capture {
    stream: *mut c_void,
    graph: *mut c_void,
    open: bool,
}

impl Capture {
    fn end(&mut self) -> u32 {
        self.open = false;
        // SAFETY: the stream is being captured, because `open` was true.
        unsafe { raw::cuStreamEndCapture(self.stream, &mut self.graph) }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.open {
            self.end();
        }
        if !self.graph.is_null() {
            // SAFETY: the call destroys the captured graph, and this guard is its only owner. An executable
            // graph that was made from the captured graph stays valid.
            unsafe { raw::cuGraphDestroy(self.graph) };
        }
    }
}

impl Graph {
    /// Submits the captured launches to `stream`. This function is unsafe, so the following code does not
    /// compile:
    ///
    /// ```compile_fail,E0133
    /// # use oxiwarp_runtime::{Graph, OwnedStream, Result};
    /// # fn replay(graph: Graph, stream: OwnedStream) -> Result<()> {
    /// graph.launch(&stream)
    /// # }
    /// ```
    ///
    /// # Safety
    /// The graph does not borrow the memory of the captured launches. The caller must keep this memory valid
    /// until the launches are done on `stream`. Until then, no other code may access the memory that the
    /// launches write. Other code may read, but not write, the memory that the launches only read.
    ///
    /// # Errors
    /// Returns a driver error, for example if `stream` belongs to another GPU.
    pub unsafe fn launch(&self, stream: &OwnedStream) -> Result<()> {
        let _current = self.0.gpu.current()?;
        // SAFETY: the launch requires an instantiated graph, which this value is. The caller guarantees that
        // the memory of the captured launches is valid.
        raw::check("cuGraphLaunch", unsafe { raw::cuGraphLaunch(self.0.value.0, stream.raw()) })
    }
}

impl Event {
    /// Records an event on `stream`. The event completes when all work that was submitted to `stream` earlier
    /// is done.
    ///
    /// # Errors
    /// Returns a driver error.
    pub fn record(stream: &OwnedStream) -> Result<Self> {
        let gpu = &stream.0.gpu;
        let _current = gpu.current()?;
        let event = cust::event::Event::new(EventFlags::DEFAULT).map_err(raw::failed("cuEventCreate"))?;
        let event = Owned::new(gpu, event);
        event.value.record(stream.as_cust()).map_err(raw::failed("cuEventRecord"))?;
        Ok(Self(event))
    }

    /// Waits until `start` and `self` are complete, and returns the GPU time between the two events.
    ///
    /// # Errors
    /// Returns an error if a kernel failed, or if `start` was recorded after `self`.
    pub fn since(&self, start: &Self) -> Result<Duration> {
        let _current = self.0.gpu.current()?;
        let (start, end) = (&start.0.value, &self.0.value);
        for event in [start, end] {
            event.synchronize().map_err(raw::failed("cuEventSynchronize"))?;
        }
        let milliseconds = end.elapsed_time_f32(start).map_err(raw::failed("cuEventElapsedTime"))?;
        Duration::try_from_secs_f64(f64::from(milliseconds) * 1e-3).map_err(|_| {
            let why = format!("the start was recorded {} ms after the end", -milliseconds);
            Error::Unsupported { op: "Event::since", why }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_cust_is_its_handle() {
        let handle = 0x1234 as *mut c_void;
        // SAFETY: `owned_stream` requires that no other code destroys the stream. The test never drops this
        // stream, because it is in a `ManuallyDrop`.
        let stream = ManuallyDrop::new(unsafe { owned_stream(handle) });
        assert_eq!(stream.as_inner().cast(), handle);
    }
}
