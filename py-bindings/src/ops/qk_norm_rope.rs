//! `oxiwarp::qk_norm_rope`, its variant for one tensor and the one with outputs: unpack, allocate, call the host.

use super::heads::{Rotation, Side};
use crate::boundary::{Args, run};
use crate::tensor::Tensor;
use oxiwarp::{QkNorm, QkNormRope};
use std::ffi::CStr;

const OP: &CStr = c"qk_norm_rope";

/// `qk_norm_rope(Tensor q, Tensor k, Tensor? q_weight, Tensor? k_weight, Tensor? q_bias, Tensor? k_bias, <norm>,
/// <rotation>) -> (Tensor, Tensor)`
pub unsafe extern "C-unwind" fn qk_norm_rope(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (q, k) = (args.tensor("q"), args.tensor("k"));
    let call = Call::read(&mut args, q, Some(k));
    run(OP, move || {
        let q_out = call.q.x.empty_like("q_out")?;
        let k_out = call.k.as_ref().map(|k| k.x.empty_like("k_out")).transpose()?;
        call.launch(&q_out, k_out.as_ref())?;
        // SAFETY: the schema has two results, so the stack has places for them.
        unsafe { (*stack, *stack.add(1)) = (q_out.into_raw(), k_out.map_or(0, Tensor::into_raw)) };
        Ok(())
    });
}

/// `qk_norm_rope_one(Tensor q, Tensor? q_weight, Tensor? k_weight, Tensor? q_bias, Tensor? k_bias, <norm>, <rotation>) ->
/// Tensor`
pub unsafe extern "C-unwind" fn qk_norm_rope_one(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: as above.
    let mut args = unsafe { Args::new(stack, OP) };
    let q = args.tensor("q");
    let call = Call::read(&mut args, q, None);
    run(OP, move || {
        let q_out = call.q.x.empty_like("q_out")?;
        call.launch(&q_out, None)?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = q_out.into_raw() };
        Ok(())
    });
}

/// `qk_norm_rope_out(Tensor q, Tensor? k, <as qk_norm_rope>, Tensor(a!) q_out, Tensor(b!)? k_out) -> ()`
pub unsafe extern "C-unwind" fn qk_norm_rope_out(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: as above.
    let mut args = unsafe { Args::new(stack, OP) };
    let (q, k) = (args.tensor("q"), args.optional_tensor("k"));
    let call = Call::read(&mut args, q, k);
    let (q_out, k_out) = (args.tensor("q_out"), args.optional_tensor("k_out"));
    run(OP, move || call.launch(&q_out, k_out.as_ref()))
}

struct Call {
    q: Side,
    k: Option<Side>,
    params: QkNormRope,
    rotation: Rotation,
}

impl Call {
    /// The arguments after the tensors: parameters, `int norm, bool across_heads, float eps`, the rotation.
    fn read(args: &mut Args, q: Tensor, k: Option<Tensor>) -> Self {
        let (q_weight, k_weight) = (args.optional_tensor("q_weight"), args.optional_tensor("k_weight"));
        let (q_bias, k_bias) = (args.optional_tensor("q_bias"), args.optional_tensor("k_bias"));
        let norm = match args.int() {
            1 => QkNorm::Layer,
            2 => QkNorm::Rms,
            3 => QkNorm::LlamaRms,
            4 => QkNorm::MochiRms,
            _ => QkNorm::None,
        };
        let (across_heads, eps) = (args.bool(), args.float() as f32);
        let rotation = Rotation::read(args);
        let params = rotation.params(QkNormRope { norm, across_heads, eps, ..QkNormRope::default() });
        let q = Side { x: q, weight: q_weight, bias: q_bias };
        let k = k.map(|x| Side { x, weight: k_weight, bias: k_bias });
        Self { q, k, params, rotation }
    }

    fn launch(&self, q_out: &Tensor, k_out: Option<&Tensor>) -> Result<(), String> {
        let sides = [Some((&self.q, q_out)), self.k.as_ref().zip(k_out)];
        self.rotation.call("qk_norm_rope", sides, |call| {
            oxiwarp::qk_norm_rope(call.device, call.q, call.k, call.rope, self.params, call.stream)
        })
    }
}
