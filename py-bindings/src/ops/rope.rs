//! `oxiwarp::rope` and `oxiwarp::rope_pair`: unpack, allocate, call the host.

use super::heads::{Rotation, Side};
use crate::boundary::{Args, run};
use crate::tensor::Tensor;
use oxiwarp::QkNormRope;
use std::ffi::CStr;

const OP: &CStr = c"rope";

/// `rope(Tensor q, <rotation>) -> Tensor`
pub unsafe extern "C-unwind" fn rope(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let q = Side::plain(args.tensor("q"));
    let rotation = Rotation::read(&mut args);
    run(OP, move || {
        let out = q.x.empty_like("q_out")?;
        launch(&rotation, [Some((&q, &out)), None])?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = out.into_raw() };
        Ok(())
    });
}

/// `rope_pair(Tensor q, Tensor k, <rotation>) -> (Tensor, Tensor)`
pub unsafe extern "C-unwind" fn rope_pair(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: as above.
    let mut args = unsafe { Args::new(stack, OP) };
    let (q, k) = (Side::plain(args.tensor("q")), Side::plain(args.tensor("k")));
    let rotation = Rotation::read(&mut args);
    run(OP, move || {
        let (q_out, k_out) = (q.x.empty_like("q_out")?, k.x.empty_like("k_out")?);
        launch(&rotation, [Some((&q, &q_out)), Some((&k, &k_out))])?;
        // SAFETY: the schema has two results, so the stack has places for them.
        unsafe { (*stack, *stack.add(1)) = (q_out.into_raw(), k_out.into_raw()) };
        Ok(())
    });
}

fn launch(rotation: &Rotation, sides: [Option<(&Side, &Tensor)>; 2]) -> Result<(), String> {
    rotation.expect_tables("rope")?;
    let QkNormRope { order, head_dim, .. } = rotation.params(QkNormRope::default());
    rotation.call("rope", sides, |call| {
        let Some(rope) = call.rope else {
            return Ok(()); // not after `expect_tables`
        };
        oxiwarp::rope(call.device, call.q, call.k, rope, order, head_dim, call.stream)
    })
}
