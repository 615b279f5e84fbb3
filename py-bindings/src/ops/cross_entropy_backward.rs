//! `oxiwarp::cross_entropy_backward`: unpack, allocate, call the host.

use super::cross_entropy::params;
use crate::boundary::{Args, run};
use crate::tensor::Tensor;
use oxiwarp::CrossEntropy;
use std::ffi::CStr;

const OP: &CStr = c"cross_entropy_backward";

/// `cross_entropy_backward(Tensor logits, Tensor target, Tensor lse, Tensor dloss, int ignore_index,
/// float label_smoothing, float z_loss) -> Tensor`
pub unsafe extern "C-unwind" fn cross_entropy_backward(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let tensors = ["logits", "target", "lse", "dloss"].map(|name| args.tensor(name));
    let params = params(&mut args);
    run(OP, move || {
        let dlogits = launch(&tensors, params)?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = dlogits.into_raw() };
        Ok(())
    });
}

fn launch([logits, target, lse, dloss]: &[Tensor; 4], params: CrossEntropy) -> Result<Tensor, String> {
    let place = logits.location()?;
    for tensor in [target, lse, dloss] {
        tensor.expect_beside(place, "logits")?;
    }
    let (device, stream) = place.device_and_stream()?;
    let dlogits = logits.empty_like("dlogits")?;
    oxiwarp::cross_entropy_backward(
        &device,
        logits.view()?,
        target.index_view()?,
        lse.view()?,
        dloss.view()?,
        dlogits.view_mut()?,
        params,
        stream,
    )
    .map_err(|error| error.to_string())?;
    Ok(dlogits)
}
