//! `oxiwarp::activation_backward`: unpack, allocate, call the host.

use super::activation::{by_number, on, roundings};
use crate::boundary::{Args, run};
use std::ffi::CStr;

const OP: &CStr = c"activation_backward";

/// `activation_backward(Tensor dy, Tensor x, Tensor? bias, int kind, bool exact) -> Tensor`
pub unsafe extern "C-unwind" fn activation_backward(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (dy, x, bias) = (args.tensor("dy"), args.tensor("x"), args.optional_tensor("bias"));
    let (kind, roundings) = (args.int(), roundings(args.bool()));
    run(OP, move || {
        let kind = by_number("activation_backward", kind, 0.0)?;
        let dx = x.empty_like("dx")?;
        let place = x.location()?;
        dy.expect_on(place)?;
        let input = x.view()?;
        let bias = on(place, bias.as_ref(), &input)?;
        let (device, stream) = place.device_and_stream()?;
        oxiwarp::activation_backward(
            &device,
            dy.view_like(&input)?,
            input,
            bias,
            dx.view_mut()?,
            kind,
            roundings,
            stream,
        )
        .map_err(|error| error.to_string())?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = dx.into_raw() };
        Ok(())
    });
}
