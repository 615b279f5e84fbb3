//! `oxiwarp::gated_activation_backward`: unpack, allocate, call the host.

use super::activation::on;
use super::gated_activation::Call;
use crate::boundary::{Args, run};
use std::ffi::CStr;

const OP: &CStr = c"gated_activation_backward";

/// `gated_activation_backward(Tensor dy, Tensor x, Tensor? second, Tensor? bias, int kind, bool gate_first,
/// float threshold, bool exact) -> Tensor`
pub unsafe extern "C-unwind" fn gated_activation_backward(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let dy = args.tensor("dy");
    // SAFETY: as above; these are the forward pass's.
    let call = unsafe { Call::read(&mut args) };
    run(OP, move || {
        let mut sizes = call.x.sizes()?.to_vec();
        if call.second.is_some() {
            sizes.iter_mut().last().into_iter().for_each(|last| *last *= 2);
        }
        let dx = call.x.empty("dx", &sizes)?;
        let params = call.params("gated_activation_backward")?;
        let place = call.x.location()?;
        dy.expect_on(place)?;
        let x = call.x.view()?;
        let (second, bias) = (on(place, call.second.as_ref(), &x)?, on(place, call.bias.as_ref(), &x)?);
        let (device, stream) = place.device_and_stream()?;
        let (dy, dx_view) = (dy.view_like(&x)?, dx.view_mut()?);
        oxiwarp::gated_activation_backward(&device, dy, x, second, bias, dx_view, params, stream)
            .map_err(|error| error.to_string())?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = dx.into_raw() };
        Ok(())
    });
}
