//! The operators, one file each, and their registration on CPU and CUDA.
//!
//! Schemas, fakes and tags are Python's (`oxiwarp/ops/*.py`); the order and types of arguments here must be theirs.

mod activation;
mod activation_backward;
mod ada_norm;
mod add_rms_norm;
mod attention;
mod attention_backward;
mod cross_entropy;
mod cross_entropy_backward;
mod gated_activation;
mod gated_activation_backward;
mod gated_residual;
mod gated_residual_ada_norm;
mod heads;
mod layer_norm;
mod layer_norm_backward;
mod qk_norm_rope;
mod residual_tanh_gated_rms_norm;
mod rms_norm;
mod rms_norm_backward;
mod rms_norm_gated;
mod rope;
mod softmax;
mod softmax_backward;

use crate::shim::{Boxed, shim};
use std::ffi::CStr;

const KERNELS: &[(&CStr, Boxed)] = &[
    (c"ada_norm", ada_norm::ada_norm),
    (c"ada_norm_pair", ada_norm::ada_norm_pair),
    (c"add_rms_norm", add_rms_norm::add_rms_norm),
    (c"gated_residual", gated_residual::gated_residual),
    (c"gated_residual_ada_norm", gated_residual_ada_norm::gated_residual_ada_norm),
    (c"layer_norm", layer_norm::layer_norm),
    (c"layer_norm_backward", layer_norm_backward::layer_norm_backward),
    (c"residual_tanh_gated_rms_norm", residual_tanh_gated_rms_norm::residual_tanh_gated_rms_norm),
    (
        c"residual_tanh_gated_rms_norm_modulated",
        residual_tanh_gated_rms_norm::residual_tanh_gated_rms_norm_modulated,
    ),
    (c"rms_norm", rms_norm::rms_norm),
    (c"rms_norm_out", rms_norm::rms_norm_out),
    (c"rms_norm_backward", rms_norm_backward::rms_norm_backward),
    (c"rms_norm_gated", rms_norm_gated::rms_norm_gated),
    (c"activation", activation::activation),
    (c"activation_out", activation::activation_out),
    (c"activation_backward", activation_backward::activation_backward),
    (c"gated_activation", gated_activation::gated_activation),
    (c"gated_activation_out", gated_activation::gated_activation_out),
    (c"gated_activation_backward", gated_activation_backward::gated_activation_backward),
    (c"softmax", softmax::softmax),
    (c"softmax_backward", softmax_backward::softmax_backward),
    (c"attention", attention::attention),
    (c"attention_out", attention::attention_out),
    (c"attention_backward", attention_backward::attention_backward),
    (c"cross_entropy", cross_entropy::cross_entropy),
    (c"cross_entropy_backward", cross_entropy_backward::cross_entropy_backward),
    (c"qk_norm_rope", qk_norm_rope::qk_norm_rope),
    (c"qk_norm_rope_one", qk_norm_rope::qk_norm_rope_one),
    (c"qk_norm_rope_out", qk_norm_rope::qk_norm_rope_out),
    (c"rope", rope::rope),
    (c"rope_pair", rope::rope_pair),
];

/// Registers every kernel of this namespace on both dispatch keys.
pub fn register(namespace: &CStr) -> Result<(), String> {
    shim().register(namespace, c"CPU", KERNELS)?;
    shim().register(namespace, c"CUDA", KERNELS)
}
