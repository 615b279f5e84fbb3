//! The boundary between torch's boxed calling convention and Rust.
//!
//! A boxed kernel gets a stack of 64-bit values and owns the objects that they point to. [`Stack`] reads
//! the values. `Call::read` takes ownership of all of them before any step can fail, so an error frees all
//! of them. [`run`] converts an error or a panic to the C++ exception of `aoti_torch_check`, the only
//! exception that may leave Rust.

use crate::shim::{Handle, shim};
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The error of a call. Its text becomes the text of the Python exception.
#[derive(Debug)]
pub struct Failure(pub String);

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<oxiwarp::Error> for Failure {
    fn from(error: oxiwarp::Error) -> Self {
        Self(error.to_string())
    }
}

/// Reads the arguments of a boxed kernel in the order of its schema.
pub struct Stack {
    next: *const u64,
}

impl Stack {
    /// # Safety
    /// `stack` must be the argument stack of a call. The methods below must be called at most once per
    /// argument, in the order and with the types of the schema.
    pub unsafe fn new(stack: *const u64) -> Self {
        Self { next: stack }
    }

    fn value(&mut self) -> u64 {
        // SAFETY: the caller of `new` calls this at most once per argument, so `next` is at most one past
        // the end.
        unsafe {
            let value = *self.next;
            self.next = self.next.add(1);
            value
        }
    }

    /// Reads a `Tensor` argument. The caller of this method owns the returned handle.
    pub fn tensor(&mut self) -> Handle {
        self.value() as Handle
    }

    /// Reads a `Tensor?` argument. Its value is null, or a pointer to a heap cell with the handle. This
    /// method frees the cell.
    pub fn optional_tensor(&mut self) -> Option<Handle> {
        let cell = self.value() as *mut u64;
        if cell.is_null() {
            return None;
        }
        // SAFETY: an optional that is present is a pointer to one value, which this function must free.
        unsafe {
            let handle = *cell;
            shim().delete_optional(cell);
            Some(handle as Handle)
        }
    }

    /// Reads a `float` argument.
    pub fn float(&mut self) -> f64 {
        f64::from_bits(self.value())
    }

    /// Reads an `int` argument.
    pub fn int(&mut self) -> i64 {
        self.value() as i64
    }

    /// Reads a `bool` argument. Only the low byte is defined.
    pub fn bool(&mut self) -> bool {
        self.value() as u8 != 0
    }
}

/// Runs the body of a boxed kernel. An error or a panic raises `RuntimeError` in Python with its text.
pub fn run(op: &'static str, body: impl FnOnce() -> Result<(), Failure>) {
    let message = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return,
        Ok(Err(Failure(message))) => message,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            format!("{op}: internal error, please report it: {text}")
        }
    };
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // SAFETY: boxed kernels are "C-unwind". `body` has dropped all arguments, and unwinding drops
    // `message`.
    unsafe { shim().throw(c"oxiwarp", &message) }
}
