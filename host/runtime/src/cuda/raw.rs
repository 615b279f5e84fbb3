//! Declarations of the CUDA driver functions that this crate calls itself, because the crate `cust` lacks
//! them. The comment before a function says what `cust` lacks.
//!
//! Each function returns the driver's `CUresult` as an integer. The crate `driver` (`host/driver`) defines
//! the symbols and forwards each call to `libcuda.so.1`. `cust` declares the result as a Rust enum. To store
//! a code that this enum lacks would be undefined behaviour. The crate `driver` therefore returns
//! `CUDA_ERROR_UNKNOWN` instead of such a code, and `driver::last_error` returns the driver's own code.
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cust::error::CudaError;

use crate::{Error, Result};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`
pub const RELAXED: c_int = 2;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`
pub const THREAD_LOCAL: c_int = 1;
/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`
pub const ERROR_LOG: [c_int; 2] = [5, 6];
/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`
pub const MAX_SHARED_OPT_IN: c_int = 97;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
pub const MAX_SHARED: c_int = 8;
/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`
pub const CARVEOUT: c_int = 9;
/// `CU_STREAM_NON_BLOCKING`
pub const NON_BLOCKING: c_uint = 1;
/// CUDA 12.3, the first driver version that keeps programmatic dependent launch when a stream is captured to
/// a graph.
pub const CAPTURES_OVERLAPPING: (i32, i32) = (12, 3);

/// `CUlaunchAttribute`: an identifier, and a union of 64 bytes that is aligned to 8 bytes.
#[repr(C, align(8))]
pub struct LaunchAttribute {
    id: c_int,
    _padding: c_int,
    value: [c_int; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION` with the value 1.
pub static OVERLAPPING: LaunchAttribute =
    LaunchAttribute { id: 6, _padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] };

/// `CUlaunchConfig`
#[repr(C)]
pub struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: *mut c_void,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: c_uint,
}

unsafe extern "C" {
    // The crate `cust` can launch only on streams that it created, so it cannot use torch's streams. `cust`
    // also does not support launch attributes.
    pub fn cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: *mut c_void,
        args: *const *const c_void,
        extra: *const *const c_void,
    ) -> c_uint;
    // The function `Module::from_ptx` of the crate `cust` discards the log of the driver's PTX compiler.
    #[rustfmt::skip]
    pub fn cuModuleLoadDataEx(
        module: *mut *mut c_void,
        image: *const c_void,
        count: c_uint,
        options: *const c_int,
        values: *mut *mut c_void,
    ) -> c_uint;
    // The crate `cust` can read the attributes of a function, but cannot set them.
    pub fn cuFuncSetAttribute(function: *mut c_void, attribute: c_int, value: c_int) -> c_uint;
    // The enum `DeviceAttribute` of the crate `cust` ends at number 91.
    pub fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_uint;
    // The crate `cust` has no function that returns the current context if this context is null or belongs to
    // another library.
    pub fn cuCtxGetCurrent(context: *mut *mut c_void) -> c_uint;
    pub fn cuCtxSetCurrent(context: *mut c_void) -> c_uint;
    // The crate `cust` supports neither stream capture, nor capture modes, nor executable graphs.
    pub fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_uint;
    pub fn cuStreamBeginCapture_v2(stream: *mut c_void, mode: c_int) -> c_uint;
    pub fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> c_uint;
    pub fn cuGraphInstantiateWithFlags(exec: *mut *mut c_void, graph: *mut c_void, flags: u64) -> c_uint;
    pub fn cuGraphLaunch(exec: *mut c_void, stream: *mut c_void) -> c_uint;
    pub fn cuGraphExecDestroy(exec: *mut c_void) -> c_uint;
    pub fn cuGraphDestroy(graph: *mut c_void) -> c_uint;
    // The crate `cust` supports asynchronous copies only on streams that it created.
    pub fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> c_uint;
    // The function `Stream::new` of the crate `cust` ignores the flag `NON_BLOCKING`.
    pub fn cuStreamCreateWithPriority(stream: *mut *mut c_void, flags: c_uint, priority: c_int) -> c_uint;
    // The crate `cust` has no value for the legacy default stream.
    pub fn cuStreamSynchronize(stream: *mut c_void) -> c_uint;
    // The crate `cust` does not support tensor maps.
    #[rustfmt::skip]
    pub fn cuTensorMapEncodeTiled(
        map: *mut c_void,
        dtype: c_int,
        rank: c_uint,
        address: *const c_void,
        dims: *const u64,
        strides: *const u64,
        box_sizes: *const c_uint,
        steps: *const c_uint,
        interleave: c_int,
        swizzle: c_int,
        promotion: c_int,
        fill: c_int,
    ) -> c_uint;
    // The type `CudaError` of the crate `cust` adds quotation marks to the error text. It has texts only for
    // the codes in its enum.
    fn cuGetErrorString(code: c_uint, text: *mut *const c_char) -> c_uint;
}

/// Returns the driver's description of an error code.
fn text(code: c_uint) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver writes a pointer to a static string to `text`, or leaves it null.
    unsafe { cuGetErrorString(code, &mut text) };
    if text.is_null() {
        return format!("unknown error {code}");
    }
    // SAFETY: `from_ptr` reads the string at `text`. `text` is not null, and the driver's string ends with
    // NUL and lives until the process ends.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Returns the driver's own code for a failed call. `code` is the error code that the caller got from the
/// crate `cust` or from a function of this file. If `code` is `CUDA_ERROR_UNKNOWN`, the crate `driver` may
/// have replaced the driver's own code. This function then returns the code from `driver::last_error`.
fn own_code(code: c_uint) -> c_uint {
    if code == CudaError::UnknownError as c_uint { driver::last_error() } else { code }
}

/// Returns the driver's description of an error of the crate `cust`.
pub fn text_of(error: CudaError) -> String {
    text(own_code(error as c_uint))
}

/// Returns the error for the failed driver function `call`, with the driver's own code and description.
/// `code` is the result of the call, as the crate `driver` returned it.
fn error(call: &'static str, code: c_uint) -> Error {
    let code = own_code(code);
    Error::Driver { call, code, text: text(code) }
}

/// Checks `code`, the result of the driver function `call`. Returns an error if `code` is not `CUDA_SUCCESS`.
pub fn check(call: &'static str, code: c_uint) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(error(call, code)) }
}

/// Returns a function for `Result::map_err` that converts an error of the crate `cust` to [`Error::Driver`].
/// The converted error contains `call`, the name of the driver function that failed.
pub fn failed(call: &'static str) -> impl Fn(CudaError) -> Error {
    move |code| error(call, code as c_uint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_cust_keeps_its_code() {
        let Error::Driver { call, code, .. } = failed("cuMemAlloc")(CudaError::NotPermitted) else {
            panic!("another error")
        };
        assert_eq!((call, code), ("cuMemAlloc", 800));
    }
}
