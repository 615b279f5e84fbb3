//! Streams, events and CUDA graphs that Rust code owns. Programs without torch and benchmarks use them.
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use super::context::Cuda;
use super::sys;
use crate::device::launch::Stream;
use crate::{Error, Result};

/// A driver handle of a stream, event or graph, with its GPU and the driver function that destroys it.
struct Handle {
    cuda: Arc<Cuda>,
    raw: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> u32,
}

// SAFETY: the driver allows the use of its handles from any thread.
unsafe impl Send for Handle {}
// SAFETY: the driver allows concurrent use of its handles.
unsafe impl Sync for Handle {}

impl Handle {
    fn new(
        cuda: &Arc<Cuda>,
        call: &'static str,
        create: impl FnOnce(*mut *mut c_void) -> u32,
        destroy: unsafe extern "C" fn(*mut c_void) -> u32,
    ) -> Result<Self> {
        let _current = cuda.current()?;
        let mut raw = std::ptr::null_mut();
        sys::check(call, create(&mut raw))?;
        Ok(Self { raw, destroy, cuda: cuda.clone() })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Ok(_current) = self.cuda.current() {
            // SAFETY: `destroy` is the destructor for this kind of handle, and no other code uses the handle
            // any more.
            unsafe { (self.destroy)(self.raw) };
        }
    }
}

/// A stream that oxiwarp creates. It does not synchronize with the legacy default stream.
pub struct OwnedStream(Handle);

/// A CUDA event, which was recorded on a stream.
pub struct Event(Handle);

/// An executable CUDA graph of captured launches.
pub struct Graph(Handle);

impl OwnedStream {
    /// Creates a stream on this GPU.
    pub(crate) fn on(cuda: &Arc<Cuda>) -> Result<Self> {
        // SAFETY: the driver writes one handle to `raw`.
        let create = |raw| unsafe { sys::cuStreamCreateWithPriority(raw, sys::NON_BLOCKING, 0) };
        Handle::new(cuda, "cuStreamCreate", create, sys::cuStreamDestroy_v2).map(Self)
    }

    /// Returns the stream for use in launches. The result borrows from `self`, so the following code does not
    /// compile:
    ///
    /// ```compile_fail,E0716
    /// # let device = oxiwarp::Device::cpu();
    /// let stream = oxiwarp::OwnedStream::new(&device)?.as_stream();
    /// let copy = stream;
    /// # Ok::<(), oxiwarp::Error>(())
    /// ```
    pub fn as_stream(&self) -> Stream<'_> {
        // SAFETY: the result borrows from `self`. `cuStreamDestroy` lets submitted work finish.
        unsafe { Stream::from_raw(self.0.raw) }
    }

    /// Blocks until all work submitted to the stream is done.
    ///
    /// # Errors
    /// Returns a driver error if a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.0.cuda.current()?;
        // SAFETY: `self` owns the stream.
        sys::check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0.raw) })
    }

    /// Captures the launches that the function `launches` submits to the stream, and returns them as a CUDA
    /// graph. The GPU executes them only when the graph is launched.
    ///
    /// # Errors
    /// Returns the error of `launches`, or a driver error if a call cannot be captured.
    pub fn capture(&self, launches: impl FnOnce(Stream) -> Result<()>) -> Result<Graph> {
        let _current = self.0.cuda.current()?;
        // SAFETY: `self` owns the stream. The guard `Capture` ends the capture, also after an error.
        sys::check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(self.0.raw, sys::THREAD_LOCAL)
        })?;
        let mut capture = Capture { stream: self.0.raw, graph: std::ptr::null_mut(), open: true };
        launches(self.as_stream())?;
        sys::check("cuStreamEndCapture", capture.end())?;
        // SAFETY: the driver writes one handle to `raw`. The capture has ended, so the graph is complete.
        let create = |raw| unsafe { sys::cuGraphInstantiateWithFlags(raw, capture.graph, 0) };
        let exec = Handle::new(&self.0.cuda, "cuGraphInstantiate", create, sys::cuGraphExecDestroy);
        exec.map(Graph)
    }
}

/// Guard for a stream capture. When dropped, it ends the capture if it is still open, and destroys the
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
        unsafe { sys::cuStreamEndCapture(self.stream, &mut self.graph) }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.open {
            self.end();
        }
        if !self.graph.is_null() {
            // SAFETY: this guard owns the captured graph. The executable graph that was made from it stays
            // valid.
            unsafe { sys::cuGraphDestroy(self.graph) };
        }
    }
}

impl Graph {
    /// Submits the captured launches to `stream`. This function is unsafe, so the following code does not
    /// compile:
    ///
    /// ```compile_fail,E0133
    /// # fn replay(graph: oxiwarp::Graph, stream: oxiwarp::OwnedStream) -> oxiwarp::Result<()> {
    /// graph.launch(&stream)
    /// # }
    /// ```
    ///
    /// # Safety
    /// The graph does not borrow the memory of the captured launches. The caller must keep this memory valid
    /// until the launches are done on `stream`. Until then, no other code may access the memory that the
    /// launches write, or write the memory that they read.
    ///
    /// # Errors
    /// Returns a driver error, for example if `stream` belongs to another GPU.
    pub unsafe fn launch(&self, stream: &OwnedStream) -> Result<()> {
        let _current = self.0.cuda.current()?;
        // SAFETY: the graph is instantiated. The caller keeps the memory that its launches access valid.
        sys::check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.0.raw, stream.0.raw) })
    }
}

impl Event {
    /// Records an event on `stream`. The event completes when all work that was submitted to `stream` earlier
    /// is done.
    ///
    /// # Errors
    /// Returns a driver error.
    pub fn record(stream: &OwnedStream) -> Result<Self> {
        // SAFETY: the driver writes one handle to `raw`.
        let create = |raw| unsafe { sys::cuEventCreate(raw, 0) };
        let event = Handle::new(&stream.0.cuda, "cuEventCreate", create, sys::cuEventDestroy_v2)?;
        let _current = event.cuda.current()?;
        // SAFETY: the event and the stream belong to the same context.
        sys::check("cuEventRecord", unsafe { sys::cuEventRecord(event.raw, stream.0.raw) })?;
        drop(_current);
        Ok(Self(event))
    }

    /// Waits until `start` and `self` are complete, and returns the GPU time between the two events.
    ///
    /// # Errors
    /// Returns an error if a kernel failed, or if `start` was recorded after `self`.
    pub fn since(&self, start: &Self) -> Result<Duration> {
        let _current = self.0.cuda.current()?;
        let mut milliseconds = 0.0;
        // SAFETY: `Event::record` is the only constructor, so both events were recorded.
        unsafe {
            sys::check("cuEventSynchronize", sys::cuEventSynchronize(start.0.raw))?;
            sys::check("cuEventSynchronize", sys::cuEventSynchronize(self.0.raw))?;
            sys::check(
                "cuEventElapsedTime",
                sys::cuEventElapsedTime(&mut milliseconds, start.0.raw, self.0.raw),
            )?;
        }
        Duration::try_from_secs_f64(f64::from(milliseconds) * 1e-3).map_err(|_| {
            let why = format!("the start was recorded {} ms after the end", -milliseconds);
            Error::Unsupported { op: "Event::since", why }
        })
    }
}
