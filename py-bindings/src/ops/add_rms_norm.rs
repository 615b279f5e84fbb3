//! `oxiwarp::add_rms_norm`: unpack, allocate both results, call the host.

use super::rounding;
use crate::boundary::{Args, run};
use crate::tensor::Tensor;
use oxiwarp::RmsNorm;
use std::ffi::CStr;

const OP: &CStr = c"add_rms_norm";

/// `add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float weight_offset, bool round_before_weight)
/// -> (Tensor, Tensor)`: the normalised sum, and the sum.
pub unsafe extern "C-unwind" fn add_rms_norm(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (x, residual, weight) = (args.tensor("x"), args.tensor("residual"), args.optional_tensor("weight"));
    let (eps, weight_offset) = (args.float() as f32, args.float() as f32);
    let params = RmsNorm { eps, weight_offset, rounding: rounding(args.bool()) };
    run(OP, move || {
        let (y, sum) = launch(&x, &residual, weight.as_ref(), params)?;
        // SAFETY: the schema has two results, so the stack has places for them.
        unsafe { (*stack, *stack.add(1)) = (y.into_raw(), sum.into_raw()) };
        Ok(())
    });
}

fn launch(
    x: &Tensor,
    residual: &Tensor,
    weight: Option<&Tensor>,
    params: RmsNorm,
) -> Result<(Tensor, Tensor), String> {
    let (place, input) = (x.location()?, x.view()?);
    for tensor in [Some(residual), weight].into_iter().flatten() {
        tensor.expect_on(place)?;
    }
    let (y, sum) = (x.empty_like("y")?, x.empty_like("sum")?);
    let weight = weight.map(|weight| weight.parameter_view(&input)).transpose()?;
    let (device, stream) = place.device_and_stream()?;
    oxiwarp::add_rms_norm(
        &device,
        input,
        residual.view_like(&input)?,
        weight,
        y.view_mut()?,
        sum.view_mut()?,
        params,
        stream,
    )
    .map_err(|error| error.to_string())?;
    Ok((y, sum))
}
