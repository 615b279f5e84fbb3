//! Binds the NVIDIA driver library at run time.
//!
//! The crate `cust` declares the functions of the CUDA driver as external symbols. A program that links only
//! `cust`, without the present crate, does not start if `libcuda.so.1` is missing. The present crate
//! therefore defines these symbols itself, and hides them from the other libraries of the process.
//!
//! Each defined function has a slot (`entry_points.rs`): a static variable with the address that the function
//! calls. The function [`load`] or the first call of `cuInit` opens `libcuda.so.1`, and writes the addresses
//! of the driver's functions to the slots. Without an open driver library, all functions except `cuInit` and
//! `cuGetErrorString` return `CUDA_ERROR_NOT_INITIALIZED`. If there is no driver, `cuInit` returns
//! `CUDA_ERROR_NO_DEVICE`.
//!
//! `cust` declares a Rust enum as the result of every driver function. A newer driver may return a code that
//! this enum lacks. To store such a code in the enum would be undefined behaviour. The functions of this
//! crate therefore return `CUDA_ERROR_UNKNOWN` instead of such a code, and [`last_error`] returns the
//! driver's own code.
//!
//! The environment variable `CUDA_LIBRARY_PATH` must name a folder that contains a folder `lib64`, for
//! example `/usr`. The build script of `cust` requires such a folder. `cust` also makes the linker search for
//! a file `libcuda.so`. The build script of this crate therefore adds the folder `link/lib64` to the linker's
//! search path. The `libcuda.so` in this folder is a linker script that contains only a comment.
//!
//! A crate that uses `cust` must write `use driver as _;` or call [`load`]. Without such a line, rustc does
//! not link the present crate (`driver`), and the driver symbols are undefined.

mod codes;
mod entry_points;

use std::arch::naked_asm;
use std::error::Error;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

pub use codes::last_error;
use codes::{CuResult, INVALID_VALUE, NO_DEVICE, SUCCESS, known_code};
use entry_points::{SLOTS, hidden, unsupported};
use libloading::Library;

/// Assembler template of a jump to a function of this crate.
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

/// The open driver library, and the addresses of `cuInit` and `cuGetErrorString`. This crate calls these two
/// functions directly, not through slots.
struct Driver {
    init: Init,
    error_string: ErrorString,
    /// The library is never closed, because the slots contain addresses in the library.
    _library: Library,
}

/// Opens the driver library. If an earlier call in this process opened the library, this function does
/// nothing. If the library cannot be opened, returns a text that gives the reason.
///
/// This function does not initialize the driver. `cust::init` and `cuInit` initialize the driver.
pub fn load() -> Result<(), &'static str> {
    driver().map(|_| ())
}

/// Returns the names of the driver functions that `libcuda.so.1` lacks, for example because the library is
/// too old. A call of such a function returns `CUDA_ERROR_NOT_SUPPORTED`. Before a call of [`load`], the
/// returned list is empty.
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
    // SAFETY: the initializers of the driver library have no preconditions.
    let library = unsafe { Library::new(name) }
        .map_err(|e| format!("the NVIDIA driver is not available: {}", e.source().unwrap_or(&e)))?;
    let function = |name: &CStr| {
        // SAFETY: `get` requires a type that fits the symbol. The type here is an address, which fits every
        // symbol. This code neither calls nor dereferences the address.
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
    // SAFETY: the conversion requires a function with the signature `Init`. The address belongs to the
    // driver's `cuInit`, for which the driver API documents this signature.
    let init = unsafe { std::mem::transmute::<*mut c_void, Init>(init) };
    // SAFETY: the conversion requires a function with the signature `ErrorString`. The address belongs to the
    // driver's `cuGetErrorString`, for which the driver API documents this signature.
    let error_string = unsafe { std::mem::transmute::<*mut c_void, ErrorString>(error_string) };
    Ok(Driver { init, error_string, _library: library })
}

/// The symbol `cuInit` that `cust` calls. It jumps to [`init`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> CuResult {
    naked_asm!(hidden!(cuInit), jump!(), sym init)
}

/// The symbol `cuGetErrorString` that `cust` calls. It jumps to [`error_string`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: CuResult, text: *mut *const c_char) -> CuResult {
    naked_asm!(hidden!(cuGetErrorString), jump!(), sym error_string)
}

/// Opens the driver library and initializes the driver. A program must call `cuInit`, and thereby this
/// function, before it calls any other driver function.
extern "C" fn init(flags: c_uint) -> CuResult {
    match driver() {
        // SAFETY: the code calls `cuInit` in the open library, whose address is `driver.init`. `cuInit` has
        // no precondition.
        Ok(driver) => match unsafe { (driver.init)(flags) } {
            SUCCESS => SUCCESS,
            code => known_code(code),
        },
        Err(_) => known_code(NO_DEVICE),
    }
}

/// Writes the address of the message for the CUDA error code `error` to `text`. This function also succeeds
/// if the machine has no driver. The crate `cust` calls this function to format errors, and would panic if
/// the call failed.
///
/// # Safety
/// `text` must be null or valid for a write.
unsafe extern "C" fn error_string(error: CuResult, text: *mut *const c_char) -> CuResult {
    const ABSENT: &CStr = c"the NVIDIA driver (libcuda.so.1) is not available";
    const UNKNOWN: &CStr = c"an error code that this NVIDIA driver does not know";
    if text.is_null() {
        return INVALID_VALUE;
    }
    let message = match driver() {
        // SAFETY: the code calls `cuGetErrorString` in the open library, whose address is
        // `driver.error_string`. This function writes to `text`. `text` is not null, so the caller guarantees
        // that it is writable.
        Ok(driver) if unsafe { (driver.error_string)(error, text) } == SUCCESS => return SUCCESS,
        Ok(_) => UNKNOWN,
        Err(_) => ABSENT,
    };
    // SAFETY: the write stores a pointer to `text`. `text` is not null, so the caller guarantees that it is
    // writable.
    unsafe { text.write(message.as_ptr()) };
    SUCCESS
}

fn text(name: &'static CStr) -> &'static str {
    name.to_str().unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use cust::error::CudaError;

    use super::*;

    /// Replaces a driver function for the rest of the process: a call of the driver function `name` then
    /// calls `with`. Two tests must not replace or call the same driver function, because tests run in
    /// parallel.
    fn replace(name: &CStr, with: *mut c_void) {
        let (_, slot) = SLOTS.iter().find(|(known, _)| *known == name).expect("the crate defines it");
        slot.store(with, Ordering::Release);
    }

    #[test]
    fn a_code_that_cust_lacks_becomes_the_unknown_error() {
        extern "C" fn newer() -> CuResult {
            912
        }
        replace(c"cuCtxSynchronize", newer as *mut c_void);
        assert_eq!(cust::context::CurrentContext::synchronize(), Err(CudaError::UnknownError));
        assert_eq!(last_error(), 912);
    }

    #[test]
    fn a_known_code_is_left_alone() {
        extern "C" fn not_permitted() -> CuResult {
            800
        }
        replace(c"cuCtxGetFlags", not_permitted as *mut c_void);
        assert_eq!(cust::context::CurrentContext::get_flags(), Err(CudaError::NotPermitted));
        assert_eq!(last_error(), 800);
    }

    /// The type of a function with twelve arguments. The caller passes six of the arguments on the stack on
    /// x86-64, and four on aarch64.
    type Twelve = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> CuResult;

    #[test]
    fn arguments_on_the_stack_arrive() {
        #[allow(clippy::many_single_char_names)]
        extern "C" fn digits(
            a: u64,
            b: u64,
            c: u64,
            d: u64,
            e: u64,
            f: u64,
            g: u64,
            h: u64,
            i: u64,
            j: u64,
            k: u64,
            l: u64,
        ) -> CuResult {
            assert_eq!([a, b, c, d, e, f, g, h, i, j, k, l], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
            if l == 12 { 0 } else { 1 }
        }
        unsafe extern "C" {
            fn cuTensorMapEncodeTiled();
        }
        replace(c"cuTensorMapEncodeTiled", digits as *mut c_void);
        // SAFETY: the conversion requires that the function has the signature `Twelve`.
        // `cuTensorMapEncodeTiled` is defined in assembler in this crate. It forwards all arguments to
        // `digits`, which has the signature `Twelve`.
        let call: Twelve = unsafe { std::mem::transmute(cuTensorMapEncodeTiled as *const ()) };
        assert_eq!(call(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 0);
    }
}
