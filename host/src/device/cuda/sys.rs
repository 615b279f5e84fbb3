//! Declarations of the CUDA driver functions that oxiwarp calls. Their result is an integer.
//!
//! The crate `cust` declares the same functions with a Rust enum as result. If a newer driver returned a code
//! that the enum lacks, the behaviour would be undefined.
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::{Error, Result};

/// `CUDA_ERROR_OUT_OF_MEMORY`
pub const OUT_OF_MEMORY: c_uint = 2;
/// `CUDA_ERROR_NOT_FOUND`
pub const NOT_FOUND: c_uint = 500;
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
/// `CU_SHAREDMEM_CARVEOUT_DEFAULT`
pub const CARVEOUT_BY_DRIVER: c_int = -1;
/// `CU_STREAM_NON_BLOCKING`
pub const NON_BLOCKING: c_uint = 1;

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
/// CUDA 12.3, the first driver version that keeps programmatic dependent launch when a stream is captured to
/// a graph.
pub const CAPTURES_OVERLAPPING: c_int = 12_030;

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
    pub fn cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: *mut c_void,
        args: *const *const c_void,
        extra: *const *const c_void,
    ) -> c_uint;
    pub fn cuInit(flags: c_uint) -> c_uint;
    pub fn cuDriverGetVersion(version: *mut c_int) -> c_uint;
    #[rustfmt::skip]
    pub fn cuModuleLoadDataEx(
        module: *mut *mut c_void,
        image: *const c_void,
        count: c_uint,
        options: *const c_int,
        values: *mut *mut c_void,
    ) -> c_uint;
    pub fn cuModuleUnload(module: *mut c_void) -> c_uint;
    pub fn cuModuleGetFunction(
        function: *mut *mut c_void,
        module: *mut c_void,
        name: *const c_char,
    ) -> c_uint;
    pub fn cuFuncSetAttribute(function: *mut c_void, attribute: c_int, value: c_int) -> c_uint;
    pub fn cuDeviceGetCount(count: *mut c_int) -> c_uint;
    pub fn cuDeviceGet(device: *mut c_int, index: c_int) -> c_uint;
    pub fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> c_uint;
    pub fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_uint;
    pub fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_uint;
    pub fn cuCtxGetCurrent(context: *mut *mut c_void) -> c_uint;
    pub fn cuCtxSetCurrent(context: *mut c_void) -> c_uint;
    pub fn cuCtxSynchronize() -> c_uint;
    pub fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_uint;
    pub fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_uint;
    pub fn cuMemFree_v2(address: u64) -> c_uint;
    pub fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> c_uint;
    pub fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> c_uint;
    pub fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> c_uint;
    pub fn cuStreamCreateWithPriority(stream: *mut *mut c_void, flags: c_uint, priority: c_int) -> c_uint;
    pub fn cuStreamDestroy_v2(stream: *mut c_void) -> c_uint;
    pub fn cuStreamSynchronize(stream: *mut c_void) -> c_uint;
    pub fn cuStreamBeginCapture_v2(stream: *mut c_void, mode: c_int) -> c_uint;
    pub fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> c_uint;
    pub fn cuGraphInstantiateWithFlags(exec: *mut *mut c_void, graph: *mut c_void, flags: u64) -> c_uint;
    pub fn cuGraphLaunch(exec: *mut c_void, stream: *mut c_void) -> c_uint;
    pub fn cuGraphExecDestroy(exec: *mut c_void) -> c_uint;
    pub fn cuGraphDestroy(graph: *mut c_void) -> c_uint;
    pub fn cuEventCreate(event: *mut *mut c_void, flags: c_uint) -> c_uint;
    pub fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> c_uint;
    pub fn cuEventSynchronize(event: *mut c_void) -> c_uint;
    pub fn cuEventElapsedTime(milliseconds: *mut f32, start: *mut c_void, end: *mut c_void) -> c_uint;
    pub fn cuEventDestroy_v2(event: *mut c_void) -> c_uint;
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
    fn cuGetErrorString(code: c_uint, text: *mut *const c_char) -> c_uint;
}

/// Returns the driver's description of an error code.
pub fn text(code: c_uint) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver writes a pointer to a static string to `text`, or leaves it null.
    unsafe { cuGetErrorString(code, &mut text) };
    if text.is_null() {
        return format!("unknown error {code}");
    }
    // SAFETY: `text` is not null, and the driver's string ends with NUL and lives until the process ends.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Returns an error unless `code`, the result of the driver function `call`, is success. The error contains
/// the name of the function.
pub fn check(call: &'static str, code: c_uint) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Error::Driver { call, code, text: text(code) }) }
}
