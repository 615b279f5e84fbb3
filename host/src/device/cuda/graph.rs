//! Streams of our own, events and graphs: for programs without torch, and for measuring.
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use super::{Cuda, sys};
use crate::{Device, Error, Result, Stream};

/// The driver handle of something made on a GPU, and how to destroy it.
struct Handle {
    cuda: Arc<Cuda>,
    raw: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> u32,
}

// SAFETY: driver handles may be used from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
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
            // SAFETY: made by the call that this one undoes, and used by nobody else any more.
            unsafe { (self.destroy)(self.raw) };
        }
    }
}

/// A stream that this process made, which the legacy default stream does not wait for.
pub struct OwnedStream(Handle);

/// A moment on a stream.
pub struct Event(Handle);

/// Captured launches, replayed as one.
pub struct Graph(Handle);

impl OwnedStream {
    /// A new stream of a GPU.
    ///
    /// # Errors
    /// The CPU executor has none; a driver error.
    pub fn new(device: &Device) -> Result<Self> {
        let Some(cuda) = device.as_cuda() else {
            let why = "the CPU executor has no streams".into();
            return Err(Error::Unsupported { op: "OwnedStream::new", why });
        };
        // SAFETY: writes the handle.
        let create = |raw| unsafe { sys::cuStreamCreateWithPriority(raw, sys::NON_BLOCKING, 0) };
        Handle::new(cuda, "cuStreamCreate", create, sys::cuStreamDestroy_v2).map(Self)
    }

    /// To launch on, as long as this is there:
    ///
    /// ```compile_fail,E0716
    /// # let device = oxiwarp::Device::cpu();
    /// let stream = oxiwarp::OwnedStream::new(&device)?.as_stream();
    /// let copy = stream;
    /// # Ok::<(), oxiwarp::Error>(())
    /// ```
    pub fn as_stream(&self) -> Stream<'_> {
        // SAFETY: our stream, borrowed; the driver destroys it when the work given to it is done.
        unsafe { Stream::from_raw(self.0.raw) }
    }

    /// Waits for the work given to it so far.
    ///
    /// # Errors
    /// A kernel that failed.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.0.cuda.current()?;
        // SAFETY: waits.
        sys::check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0.raw) })
    }

    /// What `launches` gives to the stream, as a graph; nothing of it runs yet.
    ///
    /// # Errors
    /// Those of `launches`, or a call in it that cannot be captured.
    pub fn capture(&self, launches: impl FnOnce(Stream) -> Result<()>) -> Result<Graph> {
        let _current = self.0.cuda.current()?;
        // SAFETY: our stream; `Capture` ends it, whatever happens between.
        sys::check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(self.0.raw, sys::THREAD_LOCAL)
        })?;
        let mut capture = Capture { stream: self.0.raw, graph: std::ptr::null_mut(), open: true };
        launches(self.as_stream())?;
        sys::check("cuStreamEndCapture", capture.end())?;
        // SAFETY: writes the handle; the graph is complete.
        let create = |raw| unsafe { sys::cuGraphInstantiateWithFlags(raw, capture.graph, 0) };
        let exec = Handle::new(&self.0.cuda, "cuGraphInstantiate", create, sys::cuGraphExecDestroy);
        exec.map(Graph)
    }
}

/// A capture that ends, and a graph that is destroyed, on every way out.
struct Capture {
    stream: *mut c_void,
    graph: *mut c_void,
    open: bool,
}

impl Capture {
    fn end(&mut self) -> u32 {
        self.open = false;
        // SAFETY: the stream is being captured.
        unsafe { sys::cuStreamEndCapture(self.stream, &mut self.graph) }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.open {
            self.end();
        }
        if !self.graph.is_null() {
            // SAFETY: instantiated or not, the graph itself is no longer needed.
            unsafe { sys::cuGraphDestroy(self.graph) };
        }
    }
}

impl Graph {
    /// Gives the captured launches to `stream`.
    ///
    /// ```compile_fail,E0133
    /// # fn replay(graph: oxiwarp::Graph, stream: oxiwarp::OwnedStream) -> oxiwarp::Result<()> {
    /// graph.launch(&stream)
    /// # }
    /// ```
    ///
    /// # Safety
    /// The memory that the captured launches read and write is there until `stream` has come past them, and meanwhile
    /// nobody else uses what they write, or writes what they read: the views ended with the capture, and the graph
    /// borrows nothing.
    ///
    /// # Errors
    /// A driver error; also a stream of another GPU.
    pub unsafe fn launch(&self, stream: &OwnedStream) -> Result<()> {
        let _current = self.0.cuda.current()?;
        // SAFETY: an instantiated graph; the caller promises that its memory is there.
        sys::check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.0.raw, stream.0.raw) })
    }
}

impl Event {
    /// The moment when `stream` has done the work given to it so far.
    ///
    /// # Errors
    /// A driver error.
    pub fn record(stream: &OwnedStream) -> Result<Self> {
        // SAFETY: writes the handle.
        let create = |raw| unsafe { sys::cuEventCreate(raw, 0) };
        let event = Handle::new(&stream.0.cuda, "cuEventCreate", create, sys::cuEventDestroy_v2)?;
        let _current = event.cuda.current()?;
        // SAFETY: an event and a stream of one context.
        sys::check("cuEventRecord", unsafe { sys::cuEventRecord(event.raw, stream.0.raw) })?;
        drop(_current);
        Ok(Self(event))
    }

    /// GPU time from `start` to this event; waits for both.
    ///
    /// # Errors
    /// A kernel that failed, or a start that came after this event.
    pub fn since(&self, start: &Self) -> Result<Duration> {
        let _current = self.0.cuda.current()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events were recorded.
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
