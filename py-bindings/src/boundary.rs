//! The boundary between torch's boxed calling convention and Rust.
//!
//! torch calls a boxed kernel with a stack of 64-bit values, one per argument. The kernel owns the objects to
//! which these values point, for example tensor handles. [`Stack`] reads the values. `Call::read` takes
//! ownership of all objects before it does anything that can fail, so that they are freed even if the call
//! returns an error.
//!
//! [`run`] converts an error or a panic to a C++ exception, which torch's function `aoti_torch_check` throws.
//! No other exception may leave Rust code.

use crate::shim::{Handle, shim};
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The error of a call, as text. This text becomes the message of the Python exception.
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

/// Reads the arguments of a boxed kernel from torch's stack, in the order of the operator's schema.
pub struct Stack {
    next: *const u64,
}

impl Stack {
    /// # Safety
    /// `stack` must be the argument stack of a call. The caller must read each argument at most once, in the
    /// order and with the types of the operator's schema.
    pub unsafe fn new(stack: *const u64) -> Self {
        Self { next: stack }
    }

    fn value(&mut self) -> u64 {
        // SAFETY: the code reads the argument at `next` and advances the pointer to the following argument.
        // Both stay inside the argument stack, because the caller of `new` reads each argument at most once.
        unsafe {
            let value = *self.next;
            self.next = self.next.add(1);
            value
        }
    }

    /// Reads a `Tensor` argument. The caller owns the returned handle and must free it.
    pub fn tensor(&mut self) -> Handle {
        self.value() as Handle
    }

    /// Reads a `Tensor?` argument. The value on the stack is null, or a pointer to a heap cell that contains
    /// the handle. This function frees the cell. The caller owns the returned handle and must free it.
    pub fn optional_tensor(&mut self) -> Option<Handle> {
        let cell = self.value() as *mut u64;
        if cell.is_null() {
            return None;
        }
        // SAFETY: the code reads and frees the cell. A `Tensor?` argument that is not null points to such a
        // cell on the heap, which contains one value. The kernel owns the cell, so it may read the value and
        // must free it.
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

/// Runs the body of a boxed kernel. If `body` returns an error or panics, Python raises `RuntimeError` with
/// the text of the error or panic.
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
    // SAFETY: `throw` requires that unwinding is sound for this function and its callers. The boxed kernels
    // are "C-unwind". `body` has already dropped all arguments, and unwinding drops `message`.
    unsafe { shim().throw(c"oxiwarp", &message) }
}
