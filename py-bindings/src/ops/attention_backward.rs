//! `oxiwarp::attention_backward`: unpack, allocate the gradients and the workspace, call the host.

use super::attention::{Tensors, params};
use crate::boundary::{Args, run};
use crate::tensor::Tensor;
use oxiwarp::{Attention, AttentionGradients, AttentionResult, HeadsOrder};
use std::ffi::CStr;

const OP: &CStr = c"attention_backward";

/// `attention_backward(…, Tensor out, Tensor lse, Tensor dout) -> (Tensor, Tensor, Tensor)`, after the arguments of
/// `attention` up to `softcap`.
pub unsafe extern "C-unwind" fn attention_backward(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (tensors, params) = (Tensors::read(&mut args), params(&mut args));
    let result = [args.tensor("out"), args.tensor("lse"), args.tensor("dout")];
    run(OP, move || {
        let [dq, dk, dv] = launch(&tensors, params, &result)?;
        // SAFETY: the schema has three results, so the stack has places for them.
        unsafe {
            (*stack, *stack.add(1), *stack.add(2)) = (dq.into_raw(), dk.into_raw(), dv.into_raw());
        }
        Ok(())
    });
}

fn launch(tensors: &Tensors, params: Attention, result: &[Tensor; 3]) -> Result<[Tensor; 3], String> {
    let place = tensors.location()?;
    for tensor in result {
        tensor.expect_beside(place, "q")?;
    }
    let (device, stream) = place.device_and_stream()?;
    let heads_first = params.order == HeadsOrder::HeadsFirst;
    let inputs = tensors.inputs()?;
    let [out, lse, dout] = result;
    let dq = tensors.q.empty_heads("dq", heads_first)?;
    let dk = tensors.k.empty_heads("dk", heads_first)?;
    let dv = tensors.v.empty_heads("dv", heads_first)?;
    let workspace = lse.empty_like("workspace")?;
    let gradients = AttentionGradients {
        dq: dq.view_mut()?,
        dk: dk.view_mut()?,
        dv: dv.view_mut()?,
        workspace: workspace.view_mut()?,
    };
    let result = AttentionResult { out: out.view()?, lse: lse.view()?, dout: dout.view()? };
    oxiwarp::attention_backward(&device, inputs, result, gradients, params, stream)
        .map_err(|error| error.to_string())?;
    Ok([dq, dk, dv])
}
