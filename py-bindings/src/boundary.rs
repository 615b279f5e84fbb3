//! The border between torch's boxed calling convention and ordinary Rust.
//!
//! A boxed kernel gets a stack of 64-bit values and owns what they point to. [`Stack`] reads the values, and
//! `Call::read` takes ownership of all of them before anything can fail, so an error frees all of them. [`run`] turns a
//! `Result` and even a panic into the one exception that may leave Rust: the C++ exception of `aoti_torch_check`.

use crate::shim::{Handle, shim};
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed: the text of the exception in Python.
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
    /// `stack` is the argument stack of a call, and the methods below are called at most once for each argument, in the
    /// order and with the types of the schema.
    pub unsafe fn new(stack: *const u64) -> Self {
        Self { next: stack }
    }

    fn value(&mut self) -> u64 {
        // SAFETY: the caller of new() promises one value for each call; then `next` is at most one past the end.
        unsafe {
            let value = *self.next;
            self.next = self.next.add(1);
            value
        }
    }

    /// Reads a `Tensor` argument: a handle that the caller now owns.
    pub fn tensor(&mut self) -> Handle {
        self.value() as Handle
    }

    /// Reads a `Tensor?` argument: null, or a heap cell with the handle. The cell is freed.
    pub fn optional_tensor(&mut self) -> Option<Handle> {
        let cell = self.value() as *mut u64;
        if cell.is_null() {
            return None;
        }
        // SAFETY: an optional that is present is a pointer to one value, and this call owns it.
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

/// Runs the body of a boxed kernel. An error or a panic reaches Python as `RuntimeError` with its text.
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
    // SAFETY: boxed kernels are "C-unwind" and have given all arguments to `body`, which has dropped them. Unwinding drops
    // the message.
    unsafe { shim().throw(c"oxiwarp", &message) }
}
