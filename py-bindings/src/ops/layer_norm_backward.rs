//! `oxiwarp::layer_norm_backward`: unpack, allocate, call the host.

use crate::boundary::{Args, run};
use crate::norm_backward::Operands;
use std::ffi::CStr;

const OP: &CStr = c"layer_norm_backward";

/// `layer_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor? dsum, float eps, bool dweight,
/// bool dbias) -> (Tensor, Tensor, Tensor)`
pub unsafe extern "C-unwind" fn layer_norm_backward(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (operands, eps) = (Operands::read("layer_norm_backward", &mut args, true), args.float() as f32);
    let wanted = [args.bool(), args.bool()];
    run(OP, move || {
        let results = operands.run(wanted, |c| {
            oxiwarp::layer_norm_backward(
                &c.device,
                c.dy,
                c.x,
                c.weight,
                c.dsum,
                c.dx,
                c.gradients,
                eps,
                c.stream,
            )
        })?;
        // SAFETY: the schema has three results, so the stack has places for them.
        unsafe { results.into_stack(stack, 3) };
        Ok(())
    });
}
