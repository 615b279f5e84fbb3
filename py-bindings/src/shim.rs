//! libtorch's C shim: C functions through which an extension uses torch without the C++ ABI of torch.
//!
//! This crate does not link to torch. `dlopen(RTLD_NOLOAD)` returns a handle to the `libtorch_cpu.so` that
//! `import torch` has loaded. The crate looks up each function of the shim in this library, by name. Some
//! functions exist only in torch versions newer than 2.10. If such a function is absent, this crate uses a
//! fallback.
//!
//! A function of the shim that can fail returns an error code, except `aoti_torch_check`, which throws a C++
//! exception. This crate declares all functions of the shim as `"C-unwind"`.

mod properties;
mod symbols;

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use symbols::{Code, Functions, find, open_loaded};

pub use symbols::{Boxed, Handle};

/// Maximum number of dimensions of an output. numpy and torch's TensorIterator have the same limit.
pub const MAX_DIMS: usize = 64;

/// The kinds of device that have kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Host memory; the kernel runs on the CPU executor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

type CurrentStream = unsafe extern "C-unwind" fn(i32, *mut *mut c_void) -> Code;
type DeleteValue = unsafe extern "C-unwind" fn(*mut u64) -> Code;
type OperatorDelete = unsafe extern "C-unwind" fn(*mut c_void);
type Constant = unsafe extern "C-unwind" fn() -> i32;
type LastException = unsafe extern "C-unwind" fn() -> *const c_char;

/// The functions and constants of the running libtorch.
pub struct Shim {
    functions: Functions,
    delete_value: Option<DeleteValue>,     // torch 2.13
    last_exception: Option<LastException>, // torch 2.13
    operator_delete: Option<OperatorDelete>,
    /// From libtorch_cuda.so. The first CUDA call looks it up.
    current_stream: OnceLock<Result<CurrentStream, String>>,
    directory: String,
    /// torch's dtype codes of float32, float16 and bfloat16.
    pub dtypes: [i32; 3],
    /// torch's dtype codes of float8_e4m3fn and float8_e5m2.
    pub fp8_dtypes: [i32; 2],
    /// torch's dtype codes of int64 and int32.
    pub index_dtypes: [i32; 2],
    /// torch's dtype code of bool.
    pub bool_dtype: i32,
    /// torch's device type codes of CPU and CUDA.
    pub places: [i32; 2],
    strided: i32,
}

static SHIM: OnceLock<Shim> = OnceLock::new();

/// Returns the loaded shim (functions of libtorch). Panics if [`load`] has not succeeded. Kernels never cause
/// this panic, because they are registered only after [`load`].
pub fn shim() -> &'static Shim {
    SHIM.get().expect("kernels are registered after the shim is loaded")
}

/// Finds the functions of the shim in the `libtorch_cpu.so` at `path`. The process must already have loaded
/// this library. After the first successful call, further calls do nothing.
pub fn load(path: &str) -> Result<(), String> {
    if SHIM.get().is_some() {
        return Ok(());
    }
    let library = open_loaded(path).or_else(|_| open_loaded("libtorch_cpu.so"))?;
    let functions = Functions::find(&library)?;
    // SAFETY: `find` requires the right function type for each symbol. torch's headers and the C++ ABI
    // declare the types that are given here.
    let (delete_value, last_exception, operator_delete) = unsafe {
        (
            find::<DeleteValue>(&library, "torch_delete_stable_ivalue").ok(),
            find::<LastException>(&library, "torch_exception_get_what_without_backtrace").ok(),
            find::<OperatorDelete>(&library, "_ZdlPv").ok(), // found because libtorch depends on libstdc++
        )
    };
    if delete_value.is_none() && operator_delete.is_none() {
        return Err("neither torch_delete_stable_ivalue nor operator delete can be found".into());
    }
    std::mem::forget(library); // never close it, so that torch stays loaded
    let f = &functions;
    // SAFETY: these functions take no arguments and return a constant.
    let (dtypes, fp8_dtypes, index_dtypes, bool_dtype, places, strided) = unsafe {
        (
            [(f.aoti_torch_dtype_float32)(), (f.aoti_torch_dtype_float16)(), (f.aoti_torch_dtype_bfloat16)()],
            [(f.aoti_torch_dtype_float8_e4m3fn)(), (f.aoti_torch_dtype_float8_e5m2)()],
            [(f.aoti_torch_dtype_int64)(), (f.aoti_torch_dtype_int32)()],
            (f.aoti_torch_dtype_bool)(),
            [(f.aoti_torch_device_type_cpu)(), (f.aoti_torch_device_type_cuda)()],
            (f.aoti_torch_layout_strided)(),
        )
    };
    let directory = path.rsplit_once('/').map_or(String::new(), |(directory, _)| format!("{directory}/"));
    let current_stream = OnceLock::new();
    let shim = Shim {
        functions,
        delete_value,
        last_exception,
        operator_delete,
        current_stream,
        directory,
        dtypes,
        fp8_dtypes,
        index_dtypes,
        bool_dtype,
        places,
        strided,
    };
    let _ = SHIM.set(shim); // if another thread set it first, the functions are the same
    Ok(())
}

impl Shim {
    /// Returns whether the tensor has the layout `torch.strided`. Sparse and mkldnn tensors have other
    /// layouts.
    pub fn is_strided(&self, tensor: Handle) -> Result<bool, String> {
        Ok(self.layout(tensor)? == self.strided)
    }

    /// Returns the name of a dtype for error messages. `dtype` is torch's code of the dtype. The shim cannot
    /// convert a code to a name. Therefore this function compares `dtype` with the code of each dtype, which
    /// is slow.
    pub fn dtype_name(&self, dtype: i32) -> Option<&'static str> {
        const NAMES: &[&str] = &[
            "float64",
            "int64",
            "int32",
            "int16",
            "int8",
            "uint8",
            "bool",
            "complex64",
            "complex128",
            "complex32",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
            "float4_e2m1fn_x2",
            "uint16",
            "uint32",
            "uint64",
        ];
        let library = open_loaded(&format!("{}libtorch_cpu.so", self.directory)).ok()?;
        NAMES.iter().copied().find(|name| {
            // SAFETY: `find` requires the right function type for the symbol. torch's headers declare every
            // function whose name starts with `aoti_torch_dtype_` as `int32_t f()`, which is the type
            // `Constant`.
            let number = unsafe { find::<Constant>(&library, &format!("aoti_torch_dtype_{name}")) };
            // SAFETY: the function takes no arguments.
            number.is_ok_and(|number| unsafe { number() } == dtype)
        })
    }

    /// Releases one owned tensor handle.
    pub fn delete_tensor(&self, tensor: Handle) {
        // SAFETY: the call releases the handle. Its owner, a `Tensor`, calls this function only once, when
        // the `Tensor` is dropped.
        unsafe { (self.functions.aoti_torch_delete_tensor_object)(tensor) };
    }

    /// Frees the heap cell of a `Tensor?` argument.
    ///
    /// # Safety
    /// `value` must be a pointer from the argument stack, of a `Tensor?` argument that is not null. The
    /// caller must not use the pointer afterwards.
    pub unsafe fn delete_optional(&self, value: *mut u64) {
        // SAFETY: this code frees the cell, either with a function of torch or with operator delete. torch
        // allocated the cell with `new`, and the caller owns it.
        unsafe {
            match (self.delete_value, self.operator_delete) {
                (Some(delete), _) => _ = delete(value),
                (None, Some(delete)) => delete(value.cast()),
                (None, None) => unreachable!("load() asked for one of the two"),
            }
        }
    }

    /// Allocates an uninitialized tensor. If the allocation fails, returns torch's error text. Before torch
    /// 2.13, the shim does not provide this text, and the function returns an empty text.
    ///
    /// If `heads_first` is false, the tensor is contiguous. If `heads_first` is true, `sizes` is `[...,
    /// heads, tokens, columns]`, and the memory layout is `[..., tokens, heads, columns]`.
    pub fn empty(
        &self,
        sizes: &[i64],
        heads_first: bool,
        (dtype, place, index): (i32, i32, i32),
    ) -> Result<Handle, String> {
        let mut strides = [1; MAX_DIMS];
        for at in (1..sizes.len()).rev() {
            strides[at - 1] = strides[at] * sizes[at].max(1);
        }
        if let (true, &[.., heads, _, dim]) = (heads_first, sizes) {
            let at = sizes.len() - 3;
            (strides[at], strides[at + 1]) = (dim.max(1), dim.max(1) * heads.max(1));
        }
        self.empty_strided(sizes, &strides[..sizes.len()], (dtype, place, index))
    }

    /// Allocates an uninitialized tensor with these sizes and strides, which have the same length. The errors
    /// are those of [`Shim::empty`].
    pub fn empty_strided(
        &self,
        sizes: &[i64],
        strides: &[i64],
        (dtype, place, index): (i32, i32, i32),
    ) -> Result<Handle, String> {
        assert_eq!(sizes.len(), strides.len());
        let mut tensor = std::ptr::null_mut();
        let create = self.functions.aoti_torch_empty_strided;
        // SAFETY: torch reads `sizes.len()` values from each of `sizes` and `strides`, which have as many
        // values. torch writes the new handle to `tensor`.
        match unsafe {
            create(sizes.len() as i64, sizes.as_ptr(), strides.as_ptr(), dtype, place, index, &mut tensor)
        } {
            0 => Ok(tensor),
            _ => Err(self.last_exception()),
        }
    }

    /// Copies the elements of `from` to `to`, a tensor of the same sizes, on torch's current stream.
    pub fn copy(&self, to: Handle, from: Handle) -> Result<(), String> {
        // SAFETY: the caller owns both handles, so they are valid.
        match unsafe { (self.functions.aoti_torch_copy_)(to, from, 0) } {
            0 => Ok(()),
            code => Err(format!("aoti_torch_copy_ failed with code {code}: {}", self.last_exception())),
        }
    }

    fn last_exception(&self) -> String {
        // SAFETY: the function `get` has no preconditions. It returns null, or a NUL-terminated string that
        // torch keeps for this thread.
        let text = self.last_exception.map_or(std::ptr::null(), |get| unsafe { get() });
        if text.is_null() {
            return String::new();
        }
        // SAFETY: `text` is not null and ends with NUL.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Returns torch's current stream on a CUDA device.
    pub fn current_cuda_stream(&self, index: i32) -> Result<*mut c_void, String> {
        let current = self.current_stream.get_or_init(|| {
            let library = open_loaded(&format!("{}libtorch_cuda.so", self.directory))
                .or_else(|_| open_loaded("libtorch_cuda.so"))?;
            // SAFETY: torch's headers declare this type for this name.
            let found = unsafe { find(&library, "aoti_torch_get_current_cuda_stream") };
            std::mem::forget(library);
            found
        });
        let mut stream = std::ptr::null_mut();
        // SAFETY: torch writes one pointer to `stream`.
        match unsafe { current.as_ref().map_err(Clone::clone)?(index, &mut stream) } {
            0 => Ok(stream),
            code => Err(format!("aoti_torch_get_current_cuda_stream failed with code {code}")),
        }
    }

    /// Registers kernels for operators of the torch namespace `namespace`, with the dispatch key `key` ("CPU"
    /// or "CUDA").
    pub fn register(&self, namespace: &CStr, key: &CStr, kernels: &[(&CStr, Boxed)]) -> Result<(), String> {
        let (file, f) = (c"oxiwarp".as_ptr(), &self.functions);
        let mut library = std::ptr::null_mut();
        // SAFETY: the strings that torch reads end with NUL, and torch writes the new handle to `library`.
        // This crate never deletes the handle, because torch would then remove the registered kernels.
        let mut code = unsafe {
            (f.aoti_torch_library_init_impl)(namespace.as_ptr(), key.as_ptr(), file, line!(), &mut library)
        };
        for (name, kernel) in kernels {
            if code == 0 {
                // SAFETY: torch has created the handle `library`. The registered kernel follows the boxed
                // calling convention and reads the arguments of its schema.
                code = unsafe { (f.aoti_torch_library_impl)(library, name.as_ptr(), *kernel) };
            }
        }
        if code == 0 {
            Ok(())
        } else {
            Err(format!("torch refused the {key:?} kernels: {}", self.last_exception()))
        }
    }

    /// Throws a C++ exception, which Python raises as `RuntimeError(message)`.
    ///
    /// # Safety
    /// Every function on the call stack between this function and torch must be `"C-unwind"`. Unwinding must
    /// be sound for all values that these functions own.
    pub unsafe fn throw(&self, op: &CStr, message: &CStr) {
        // SAFETY: the strings that torch reads end with NUL, and torch copies them before it throws the
        // exception. The caller guarantees that the exception may unwind the call stack.
        unsafe {
            (self.functions.aoti_torch_check)(
                false,
                op.as_ptr(),
                c"oxiwarp".as_ptr(),
                line!(),
                message.as_ptr(),
            )
        }
    }
}
