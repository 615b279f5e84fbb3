//! `oxiwarp::rms_norm_backward`: unpack, allocate, call the host.

use crate::boundary::{Args, run};
use crate::norm_backward::Operands;
use oxiwarp::RmsNorm;
use std::ffi::CStr;

const OP: &CStr = c"rms_norm_backward";

/// `rms_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? dsum, float eps, float weight_offset, bool dweight)
/// -> (Tensor, Tensor)`
pub unsafe extern "C-unwind" fn rms_norm_backward(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let operands = Operands::read("rms_norm_backward", &mut args, false);
    let (eps, weight_offset) = (args.float() as f32, args.float() as f32);
    let (params, dweight) = (RmsNorm { eps, weight_offset, ..RmsNorm::default() }, args.bool());
    run(OP, move || {
        let results = operands.run([dweight, false], |c| {
            oxiwarp::rms_norm_backward(
                &c.device,
                c.dy,
                c.x,
                c.weight,
                c.dsum,
                c.dx,
                c.gradients,
                params,
                c.stream,
            )
        })?;
        // SAFETY: the schema has two results, so the stack has places for them.
        unsafe { results.into_stack(stack, 2) };
        Ok(())
    });
}
