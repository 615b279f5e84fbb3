//! `oxiwarp::residual_tanh_gated_rms_norm` and its chained form: unpack, allocate, call the host.

use crate::boundary::{Args, run};
use crate::modulation::ModulationArgs;
use std::ffi::CStr;

const OP: &CStr = c"residual_tanh_gated_rms_norm";
const CHAINED: &CStr = c"residual_tanh_gated_rms_norm_modulated";

/// `residual_tanh_gated_rms_norm(Tensor x, Tensor x_res, Tensor gate, float eps) -> Tensor`
pub unsafe extern "C-unwind" fn residual_tanh_gated_rms_norm(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (x, branch, gate) = (args.tensor("x"), args.tensor("x_res"), args.tensor("gate"));
    let eps = args.float() as f32;
    run(OP, move || {
        let (place, input) = (x.location()?, x.view()?);
        branch.expect_on(place)?;
        gate.expect_on(place)?;
        let out = x.empty_like("out")?;
        let (device, stream) = place.device_and_stream()?;
        let inputs = [input, branch.view_like(&input)?];
        oxiwarp::residual_tanh_gated_rms_norm(
            &device,
            inputs,
            gate.parameter_view(&input)?,
            out.view_mut()?,
            eps,
            stream,
        )
        .map_err(|error| error.to_string())?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = out.into_raw() };
        Ok(())
    });
}

/// `residual_tanh_gated_rms_norm_modulated(Tensor x, Tensor x_res, Tensor gate, Tensor scale, Tensor? scale_table, float
/// eps) -> (Tensor, Tensor)`: the modulated norm of the sum, and the sum.
pub unsafe extern "C-unwind" fn residual_tanh_gated_rms_norm_modulated(
    stack: *mut u64,
    _inputs: u64,
    _outputs: u64,
) {
    // SAFETY: as above.
    let mut args = unsafe { Args::new(stack, CHAINED) };
    let (x, branch, gate) = (args.tensor("x"), args.tensor("x_res"), args.tensor("gate"));
    let (scale, eps) = (ModulationArgs::read(&mut args, "scale", "scale_table"), args.float() as f32);
    run(CHAINED, move || {
        let (place, input) = (x.location()?, x.view()?);
        branch.expect_on(place)?;
        gate.expect_on(place)?;
        let scale = scale.views(place, &input)?.ok_or("scale is missing")?;
        let (normed, out) = (x.empty_like("normed")?, x.empty_like("out")?);
        let (device, stream) = place.device_and_stream()?;
        let (inputs, outputs) = ([input, branch.view_like(&input)?], [normed.view_mut()?, out.view_mut()?]);
        oxiwarp::residual_tanh_gated_rms_norm_modulated(
            &device,
            inputs,
            gate.parameter_view(&input)?,
            scale,
            outputs,
            eps,
            stream,
        )
        .map_err(|error| error.to_string())?;
        // SAFETY: the schema has two results, so the stack has places for them.
        unsafe { (*stack, *stack.add(1)) = (normed.into_raw(), out.into_raw()) };
        Ok(())
    });
}
