//! `oxiwarp::gated_residual`: unpack, allocate, call the host.

use crate::boundary::{Args, run};
use crate::modulation::ModulationArgs;
use oxiwarp::GatedResidual;
use std::ffi::CStr;

const OP: &CStr = c"gated_residual";

/// `gated_residual(Tensor x, Tensor y, Tensor gate, Tensor? gate_table, bool exact, bool clip) -> Tensor`
pub unsafe extern "C-unwind" fn gated_residual(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (x, y) = (args.tensor("x"), args.tensor("y"));
    let gate = ModulationArgs::read(&mut args, "gate", "gate_table");
    let params = GatedResidual { exact: args.bool(), clip: args.bool() };
    run(OP, move || {
        let (place, input) = (x.location()?, x.view()?);
        y.expect_on(place)?;
        let gate = gate.views(place, &input)?.ok_or("gate is missing")?;
        let sum = x.empty_like("out")?;
        let (device, stream) = place.device_and_stream()?;
        oxiwarp::gated_residual(&device, input, y.view_like(&input)?, gate, sum.view_mut()?, params, stream)
            .map_err(|error| error.to_string())?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = sum.into_raw() };
        Ok(())
    });
}
