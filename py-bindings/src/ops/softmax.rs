//! `oxiwarp::softmax`: unpack, allocate, call the host.

use crate::boundary::{Args, run};
use std::ffi::CStr;

const OP: &CStr = c"softmax";

/// `softmax(Tensor x, bool log) -> Tensor`
pub unsafe extern "C-unwind" fn softmax(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (x, log) = (args.tensor("x"), args.bool());
    run(OP, move || {
        let (device, stream) = x.location()?.device_and_stream()?;
        let y = x.empty_like("y")?;
        oxiwarp::softmax(&device, x.view()?, y.view_mut()?, log, stream)
            .map_err(|error| error.to_string())?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = y.into_raw() };
        Ok(())
    });
}
