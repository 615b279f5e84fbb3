//! The border between torch's boxed calling convention and ordinary Rust.
//!
//! A boxed kernel gets a stack of 64-bit values and owns what they point to. [`Args`] takes ownership of every argument
//! before anything can fail, so an error frees all of them. [`run`] turns a `Result` and even a panic into the one
//! exception that may leave Rust: the C++ exception of `aoti_torch_check`.

use crate::shim::shim;
use crate::tensor::Tensor;
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Reads a boxed kernel's arguments in the order of its schema.
pub struct Args {
    stack: *const u64,
    op: &'static str,
}

impl Args {
    /// # Safety
    /// `stack` is the argument stack of a call of `op`, and the methods below are called once per argument, in the
    /// order and with the types of the schema.
    pub unsafe fn new(stack: *mut u64, op: &'static CStr) -> Self {
        Args { stack, op: op.to_str().unwrap_or("oxiwarp") }
    }

    fn next(&mut self) -> u64 {
        // SAFETY: new()'s caller promised one value per call; afterwards the cursor is at most one past the end.
        unsafe {
            let value = *self.stack;
            self.stack = self.stack.add(1);
            value
        }
    }

    /// A `Tensor` argument.
    pub fn tensor(&mut self, name: &'static str) -> Tensor {
        let handle = self.next();
        Tensor::own(handle as *mut _, self.op, name)
    }

    /// A `Tensor?` argument: null, or a heap cell that holds the handle and now belongs to us.
    pub fn optional_tensor(&mut self, name: &'static str) -> Option<Tensor> {
        let cell = self.next() as *mut u64;
        if cell.is_null() {
            return None;
        }
        // SAFETY: a present optional is a pointer to one value, ours to free.
        let handle = unsafe {
            let handle = *cell;
            shim().delete_optional(cell);
            handle
        };
        Some(Tensor::own(handle as *mut _, self.op, name))
    }

    /// A `float` argument.
    pub fn float(&mut self) -> f64 {
        f64::from_bits(self.next())
    }

    /// An `int` argument.
    pub fn int(&mut self) -> i64 {
        self.next() as i64
    }

    /// A `bool` argument (only the low byte is defined).
    pub fn bool(&mut self) -> bool {
        self.next() as u8 != 0
    }
}

/// Runs the body of a boxed kernel; an error or a panic reaches Python as `RuntimeError` with its text.
pub fn run(op: &'static CStr, body: impl FnOnce() -> Result<(), String>) {
    let message = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return,
        Ok(Err(message)) => message,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            format!("{}: internal error, please report it: {text}", op.to_string_lossy())
        }
    };
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // SAFETY: boxed kernels are "C-unwind" and have given all arguments to `body`, which has dropped them; the message
    // is dropped by the unwinding itself.
    unsafe { shim().throw(op, &message) }
}
