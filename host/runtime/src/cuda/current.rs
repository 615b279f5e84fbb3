//! Guards for the current CUDA context and the stream capture mode of the calling thread. A guard is created
//! when one of these two settings is changed. When dropped, the guard restores the previous setting.
use std::ffi::c_void;

use cust::context::{Context, CurrentContext};

use super::raw;
use crate::Result;

/// Guard that makes a context current in this thread. When dropped, the guard restores the previous context.
pub(crate) struct Current {
    before: *mut c_void,
    changed: bool,
}

impl Current {
    pub fn set(context: &Context) -> Result<Self> {
        let before = Self::get()?;
        let changed = before != context.as_raw().cast();
        if changed {
            CurrentContext::set_current(context).map_err(raw::failed("cuCtxSetCurrent"))?;
        }
        Ok(Self { before, changed })
    }

    /// Returns a guard without changing the current context. The caller may then change it. When dropped, the
    /// guard restores the context that was current when this function was called.
    pub fn restore() -> Result<Self> {
        Ok(Self { before: Self::get()?, changed: true })
    }

    fn get() -> Result<*mut c_void> {
        let mut before = std::ptr::null_mut();
        // SAFETY: the driver writes one pointer to `before`.
        raw::check("cuCtxGetCurrent", unsafe { raw::cuCtxGetCurrent(&mut before) })?;
        Ok(before)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.changed {
            // SAFETY: `before` was the current context when this guard was made.
            unsafe { raw::cuCtxSetCurrent(self.before) };
        }
    }
}

/// Guard that sets the stream capture mode of this thread to relaxed. In this mode, the thread may call
/// functions that are otherwise forbidden during a stream capture, for example `cuMemAlloc`. When dropped,
/// the guard restores the previous mode.
pub(crate) struct Relaxed(i32);

impl Relaxed {
    pub fn new() -> Self {
        let mut mode = raw::RELAXED;
        // SAFETY: the driver reads the new capture mode from the local variable `mode`, and writes the
        // previous mode to it.
        unsafe { raw::cuThreadExchangeStreamCaptureMode(&mut mode) };
        Self(mode)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: the driver reads and writes only this field.
        unsafe { raw::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}
