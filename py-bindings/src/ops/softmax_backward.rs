//! `oxiwarp::softmax_backward`: unpack, allocate, call the host.

use crate::boundary::{Args, run};
use std::ffi::CStr;

const OP: &CStr = c"softmax_backward";

/// `softmax_backward(Tensor y, Tensor dy, bool log) -> Tensor`
pub unsafe extern "C-unwind" fn softmax_backward(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (y, dy, log) = (args.tensor("y"), args.tensor("dy"), args.bool());
    run(OP, move || {
        let place = y.location()?;
        dy.expect_beside(place, "y")?;
        let (device, stream) = place.device_and_stream()?;
        let dx = y.empty_like("dx")?;
        oxiwarp::softmax_backward(&device, y.view()?, dy.view_like(&y.view()?)?, dx.view_mut()?, log, stream)
            .map_err(|error| error.to_string())?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = dx.into_raw() };
        Ok(())
    });
}
