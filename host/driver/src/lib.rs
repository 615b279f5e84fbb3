//! Run-time binding to the NVIDIA driver library.
//!
//! `cust` declares the driver API as ordinary external symbols, so a program that links it does not
//! start where `libcuda.so.1` is missing. This crate defines those symbols itself, hidden from the
//! other libraries of the process. Each definition is a jump through a slot (`entry_points.rs`); [`load`], or the first `cuInit`, opens the library and
//! fills the slots. Before that, and where there is no driver, a slot answers
//! `CUDA_ERROR_NOT_INITIALIZED`, and `cuInit` answers `CUDA_ERROR_NO_DEVICE`.
//!
//! At build time `cust` wants a folder with a `libcuda.so`. `link/lib64/libcuda.so` is that: a linker
//! script of one comment, found through `CUDA_LIBRARY_PATH` in `.cargo/config.toml`.
//!
//! A crate that uses `cust` writes `use driver as _;` somewhere, or calls [`load`]: otherwise the
//! linker never sees the definitions.

mod entry_points;

use std::arch::naked_asm;
use std::error::Error;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use entry_points::{SLOTS, hidden};
use libloading::Library;

/// `CUresult`: kept as an integer, because a newer driver has codes that no enum of ours lists.
type CuResult = c_uint;
const SUCCESS: CuResult = 0;
const INVALID_VALUE: CuResult = 1;
const NOT_INITIALIZED: CuResult = 3;
const NO_DEVICE: CuResult = 100;
const NOT_SUPPORTED: CuResult = 801;

/// A jump to a function of this crate.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {}"
    };
}

type Init = unsafe extern "C" fn(c_uint) -> CuResult;
type ErrorString = unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult;

/// The open library, with the two functions that this crate wraps, rather than only jumping to them.
struct Driver {
    init: Init,
    error_string: ErrorString,
    /// Never closed: the slots point into it.
    _library: Library,
}

/// Opens the driver library, once per process. The error says why it could not be opened.
///
/// This only makes the driver API callable; `cust::init` (or `cuInit`) initialises it.
pub fn load() -> Result<(), &'static str> {
    driver().map(|_| ())
}

/// Names of driver functions that the opened library does not export: calling one of them answers
/// `CUDA_ERROR_NOT_SUPPORTED`. Empty before [`load`].
pub fn missing() -> Vec<&'static str> {
    let absent = unsupported as *mut c_void;
    SLOTS
        .iter()
        .filter(|(_, slot)| slot.load(Ordering::Acquire) == absent)
        .map(|(name, _)| text(name))
        .collect()
}

fn driver() -> Result<&'static Driver, &'static str> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    DRIVER.get_or_init(open).as_ref().map_err(String::as_str)
}

fn open() -> Result<Driver, String> {
    let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
    // SAFETY: the driver library's initialisers have no requirement towards the program that opens it.
    let library = unsafe { Library::new(name) }
        .map_err(|e| format!("the NVIDIA driver is not available: {}", e.source().unwrap_or(&e)))?;
    let function = |name: &CStr| {
        // SAFETY: only the address is taken here.
        unsafe { library.get::<*mut c_void>(name) }
            .ok()
            .map(|symbol| *symbol)
            .filter(|address| !address.is_null())
    };
    let required = |name: &'static CStr| {
        function(name).ok_or_else(|| format!("the NVIDIA driver library has no {}", text(name)))
    };
    let (init, error_string) = (required(c"cuInit")?, required(c"cuGetErrorString")?);
    for (name, slot) in SLOTS {
        slot.store(function(name).unwrap_or(unsupported as *mut c_void), Ordering::Release);
    }
    // SAFETY: this is the signature that the driver API documents for `cuInit`.
    let init = unsafe { std::mem::transmute::<*mut c_void, Init>(init) };
    // SAFETY: likewise, for `cuGetErrorString`.
    let error_string = unsafe { std::mem::transmute::<*mut c_void, ErrorString>(error_string) };
    Ok(Driver { init, error_string, _library: library })
}

/// What a slot holds until the library is open.
extern "C" fn unloaded() -> CuResult {
    NOT_INITIALIZED
}

/// What a slot holds when the opened library lacks its function.
extern "C" fn unsupported() -> CuResult {
    NOT_SUPPORTED
}

/// What `cust` calls: [`init`], under the driver's name.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> CuResult {
    naked_asm!(hidden!(cuInit), jump!(), sym init)
}

/// What `cust` calls: [`error_string`], under the driver's name.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: CuResult, text: *mut *const c_char) -> CuResult {
    naked_asm!(hidden!(cuGetErrorString), jump!(), sym error_string)
}

/// Opens the driver, then initialises it: every other function may be called only after this.
extern "C" fn init(flags: c_uint) -> CuResult {
    match driver() {
        // SAFETY: the pointer came from the open library; `cuInit` has no precondition.
        Ok(driver) => unsafe { (driver.init)(flags) },
        Err(_) => NO_DEVICE,
    }
}

/// Answers without a driver too: `cust` formats its errors through it, and panics on a failure.
///
/// # Safety
/// `text` is null, or may be written to.
unsafe extern "C" fn error_string(error: CuResult, text: *mut *const c_char) -> CuResult {
    const ABSENT: &CStr = c"the NVIDIA driver (libcuda.so.1) is not available";
    const UNKNOWN: &CStr = c"an error code that this NVIDIA driver does not know";
    if text.is_null() {
        return INVALID_VALUE;
    }
    let message = match driver() {
        // SAFETY: the pointer came from the open library; the caller vouches for `text`.
        Ok(driver) if unsafe { (driver.error_string)(error, text) } == SUCCESS => return SUCCESS,
        Ok(_) => UNKNOWN,
        Err(_) => ABSENT,
    };
    // SAFETY: not null, and the caller vouches that it may be written to.
    unsafe { text.write(message.as_ptr()) };
    SUCCESS
}

fn text(name: &'static CStr) -> &'static str {
    name.to_str().unwrap_or("?")
}
