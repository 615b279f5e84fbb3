//! `oxiwarp::layer_norm`: unpack, allocate, call the host.

use crate::boundary::{Args, run};
use crate::modulation::AffineArgs;
use std::ffi::CStr;

const OP: &CStr = c"layer_norm";

/// `layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor`
pub unsafe extern "C-unwind" fn layer_norm(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (x, affine, eps) = (args.tensor("x"), AffineArgs::read(&mut args), args.float() as f32);
    run(OP, move || {
        let (place, input) = (x.location()?, x.view()?);
        let affine = affine.views(place, &input)?;
        let y = x.empty_like("y")?;
        let (device, stream) = place.device_and_stream()?;
        oxiwarp::layer_norm(&device, input, affine, y.view_mut()?, eps, stream)
            .map_err(|error| error.to_string())?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = y.into_raw() };
        Ok(())
    });
}
