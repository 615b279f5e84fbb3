//! `oxiwarp::rms_norm_gated`: unpack, allocate, call the host.

use super::rounding;
use crate::boundary::{Args, run};
use oxiwarp::{GateFunction, GateOrder, RmsNorm, RmsNormGated};
use std::ffi::CStr;

const OP: &CStr = c"rms_norm_gated";

/// `rms_norm_gated(Tensor x, Tensor gate, Tensor? weight, float eps, bool round_before_weight, bool sigmoid,
/// bool gate_first) -> Tensor`
pub unsafe extern "C-unwind" fn rms_norm_gated(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (x, gate, weight) = (args.tensor("x"), args.tensor("gate"), args.optional_tensor("weight"));
    let (eps, before_weight) = (args.float() as f32, args.bool());
    let (sigmoid, gate_first) = (args.bool(), args.bool());
    let params = RmsNormGated {
        norm: RmsNorm { eps, rounding: rounding(before_weight), ..RmsNorm::default() },
        function: if sigmoid { GateFunction::Sigmoid } else { GateFunction::Silu },
        order: if gate_first { GateOrder::GateFirst } else { GateOrder::NormFirst },
    };
    run(OP, move || {
        let (place, input) = (x.location()?, x.view()?);
        for tensor in [Some(&gate), weight.as_ref()].into_iter().flatten() {
            tensor.expect_on(place)?;
        }
        let y = x.empty_like("y")?;
        let weight = weight.as_ref().map(|weight| weight.parameter_view(&input)).transpose()?;
        let (device, stream) = place.device_and_stream()?;
        oxiwarp::rms_norm_gated(
            &device,
            input,
            gate.view_like(&input)?,
            weight,
            y.view_mut()?,
            params,
            stream,
        )
        .map_err(|error| error.to_string())?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = y.into_raw() };
        Ok(())
    });
}
