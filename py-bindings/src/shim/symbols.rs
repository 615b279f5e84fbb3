//! The table of shim functions, and their lookup.

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use std::ffi::{c_char, c_void};

/// An opaque `AtenTensorHandle` or `TorchLibraryHandle`.
pub type Handle = *mut c_void;
/// A boxed kernel. Its parameters are the argument stack, the number of inputs and the number of outputs.
pub type Boxed = unsafe extern "C-unwind" fn(*mut u64, u64, u64);
/// The result of a shim function: 0, or an error code.
pub type Code = i32;

/// Returns a handle to the library at `path` if the process has already loaded it, otherwise an error.
pub fn open_loaded(path: &str) -> Result<Library, String> {
    // SAFETY: with RTLD_NOLOAD no initializer runs.
    unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL | libc::RTLD_NOLOAD) }
        .map_err(|error| format!("{path} is not loaded: {error}"))
}

/// Looks up a function by its name in `library`. Returns an error if the library does not have this function.
///
/// # Safety
/// `F` must be the type of the function that `name` names.
pub unsafe fn find<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: `get` requires that the symbol is a function of type `F`. The caller guarantees this.
    let symbol = unsafe { library.get::<F>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|error| format!("this torch lacks {name}: {error}"))
}

macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions that every supported torch version has.
        pub struct Functions { $(pub $name: unsafe extern "C-unwind" fn($($arg),*) $(-> $ret)?),* }
        impl Functions {
            /// Looks up all functions.
            pub fn find(library: &Library) -> Result<Self, String> {
                // SAFETY: torch's headers declare each type for its name.
                unsafe { Ok(Functions { $($name: find(library, stringify!($name))?),* }) }
            }
        }
    };
}

functions! {
    aoti_torch_library_init_impl: fn(*const c_char, *const c_char, *const c_char, u32, *mut Handle) -> Code;
    aoti_torch_library_impl: fn(Handle, *const c_char, Boxed) -> Code;
    aoti_torch_delete_tensor_object: fn(Handle) -> Code;
    aoti_torch_get_data_ptr: fn(Handle, *mut *mut c_void) -> Code;
    aoti_torch_get_dim: fn(Handle, *mut i64) -> Code;
    aoti_torch_get_sizes: fn(Handle, *mut *mut i64) -> Code;
    aoti_torch_get_strides: fn(Handle, *mut *mut i64) -> Code;
    aoti_torch_get_dtype: fn(Handle, *mut i32) -> Code;
    aoti_torch_get_device_type: fn(Handle, *mut i32) -> Code;
    aoti_torch_get_device_index: fn(Handle, *mut i32) -> Code;
    aoti_torch_get_layout: fn(Handle, *mut i32) -> Code;
    aoti_torch_copy_: fn(Handle, Handle, i32) -> Code;
    aoti_torch_empty_strided: fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> Code;
    aoti_torch_dtype_float32: fn() -> i32;
    aoti_torch_dtype_float16: fn() -> i32;
    aoti_torch_dtype_bfloat16: fn() -> i32;
    aoti_torch_dtype_float8_e4m3fn: fn() -> i32;
    aoti_torch_dtype_float8_e5m2: fn() -> i32;
    aoti_torch_dtype_int64: fn() -> i32;
    aoti_torch_dtype_int32: fn() -> i32;
    aoti_torch_dtype_bool: fn() -> i32;
    aoti_torch_device_type_cpu: fn() -> i32;
    aoti_torch_device_type_cuda: fn() -> i32;
    aoti_torch_layout_strided: fn() -> i32;
    aoti_torch_check: fn(bool, *const c_char, *const c_char, u32, *const c_char);
}
