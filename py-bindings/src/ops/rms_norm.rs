//! `oxiwarp::rms_norm` and `oxiwarp::rms_norm_out`: unpack, allocate, call the host.

use super::rounding;
use crate::boundary::{Args, run};
use crate::tensor::Tensor;
use oxiwarp::RmsNorm;
use std::ffi::CStr;

const OP: &CStr = c"rms_norm";

/// `rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset, bool round_before_weight) -> Tensor`
pub unsafe extern "C-unwind" fn rms_norm(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let call = unsafe { Call::read(stack) }.0;
    run(OP, move || {
        let y = call.x.empty_like("y")?;
        call.launch(&y)?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = y.into_raw() };
        Ok(())
    });
}

/// `rms_norm_out(Tensor x, Tensor? weight, float eps, float weight_offset, bool round_before_weight, Tensor(a!) out) -> ()`
pub unsafe extern "C-unwind" fn rms_norm_out(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: as above, with `out` as one more argument.
    let (call, mut rest) = unsafe { Call::read(stack) };
    let out = rest.tensor("out");
    run(OP, move || {
        out.expect_on(call.x.location()?)?;
        call.launch(&out)
    });
}

struct Call {
    x: Tensor,
    weight: Option<Tensor>,
    params: RmsNorm,
}

impl Call {
    /// # Safety
    /// `stack` holds the five arguments that both schemas begin with.
    unsafe fn read(stack: *mut u64) -> (Self, Args) {
        // SAFETY: passed on to the caller; one read per argument, in order.
        let mut args = unsafe { Args::new(stack, OP) };
        let (x, weight) = (args.tensor("x"), args.optional_tensor("weight"));
        let params = RmsNorm {
            eps: args.float() as f32,
            weight_offset: args.float() as f32,
            rounding: rounding(args.bool()),
        };
        (Call { x, weight, params }, args)
    }

    fn launch(&self, y: &Tensor) -> Result<(), String> {
        let place = self.x.location()?;
        if let Some(weight) = &self.weight {
            weight.expect_on(place)?;
        }
        let x = self.x.view()?;
        let weight = self.weight.as_ref().map(|weight| weight.parameter_view(&x)).transpose()?;
        let y = y.view_mut_like(&x)?;
        let (device, stream) = place.device_and_stream()?;
        oxiwarp::rms_norm(&device, x, weight, y, self.params, stream).map_err(|error| error.to_string())
    }
}
