//! `oxiwarp::gated_residual_ada_norm`: unpack, allocate both results, call the host.

use super::ada_norm::{FIRST, read_params};
use crate::boundary::{Args, run};
use crate::modulation::{AffineArgs, ModulationArgs, ScaleShiftArgs};
use oxiwarp::GatedResidual;
use std::ffi::CStr;

const OP: &CStr = c"gated_residual_ada_norm";

/// `gated_residual_ada_norm(Tensor x, Tensor y, Tensor? gate, Tensor? gate_table, Tensor scale, Tensor? scale_table,
/// Tensor? shift, Tensor? shift_table, Tensor? weight, Tensor? bias, bool rms, float eps, bool exact, bool clip) ->
/// (Tensor, Tensor)`: the modulated norm of the sum, and the sum.
pub unsafe extern "C-unwind" fn gated_residual_ada_norm(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (x, y) = (args.tensor("x"), args.tensor("y"));
    let gate = ModulationArgs::read_optional(&mut args, "gate", "gate_table");
    let by = ScaleShiftArgs::read(&mut args, FIRST);
    let (affine, params) = (AffineArgs::read(&mut args), read_params(&mut args));
    let residual = GatedResidual { exact: params.exact, clip: args.bool() };
    run(OP, move || {
        let (place, input) = (x.location()?, x.view()?);
        y.expect_on(place)?;
        let (gate, by, affine) =
            (gate.views(place, &input)?, by.views(place, &input)?, affine.views(place, &input)?);
        let (normed, sum) = (x.empty_like("y")?, x.empty_like("sum")?);
        let (device, stream) = place.device_and_stream()?;
        let (inputs, outputs) = ([input, y.view_like(&input)?], [normed.view_mut()?, sum.view_mut()?]);
        let params = (params, residual);
        oxiwarp::gated_residual_ada_norm(&device, inputs, gate, affine, by, outputs, params, stream)
            .map_err(|error| error.to_string())?;
        // SAFETY: the schema has two results, so the stack has places for them.
        unsafe { (*stack, *stack.add(1)) = (normed.into_raw(), sum.into_raw()) };
        Ok(())
    });
}
