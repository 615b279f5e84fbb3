//! The entry points of the kernels. Each op has one file. The builder compiles each file to PTX
//! separately, with `--cfg unit="<op>"`.
// The script scripts/module_lists.py writes the list of modules below. Run `make lists` after you add, rename
// or remove a file.
#[cfg(any(not(unit), unit = "activation"))]
pub mod activation;
#[cfg(any(not(unit), unit = "activation_backward"))]
pub mod activation_backward;
#[cfg(any(not(unit), unit = "ada_norm"))]
pub mod ada_norm;
#[cfg(any(not(unit), unit = "add_rms_norm"))]
pub mod add_rms_norm;
#[cfg(any(not(unit), unit = "attention"))]
pub mod attention;
#[cfg(any(not(unit), unit = "attention_backward"))]
pub mod attention_backward;
#[cfg(any(not(unit), unit = "attention_decode"))]
pub mod attention_decode;
#[cfg(any(not(unit), unit = "attention_hopper"))]
pub mod attention_hopper;
#[cfg(any(not(unit), unit = "cross_entropy"))]
pub mod cross_entropy;
#[cfg(any(not(unit), unit = "cross_entropy_backward"))]
pub mod cross_entropy_backward;
#[cfg(any(not(unit), unit = "gated_activation"))]
pub mod gated_activation;
#[cfg(any(not(unit), unit = "gated_activation_backward"))]
pub mod gated_activation_backward;
#[cfg(any(not(unit), unit = "gated_residual"))]
pub mod gated_residual;
#[cfg(any(not(unit), unit = "gated_residual_ada_norm"))]
pub mod gated_residual_ada_norm;
#[cfg(any(not(unit), unit = "gated_residual_backward"))]
pub mod gated_residual_backward;
#[cfg(any(not(unit), unit = "layer_norm"))]
pub mod layer_norm;
#[cfg(any(not(unit), unit = "layer_norm_backward"))]
pub mod layer_norm_backward;
#[cfg(any(not(unit), unit = "linear"))]
pub mod linear;
#[cfg(any(not(unit), unit = "linear_activation"))]
pub mod linear_activation;
#[cfg(any(not(unit), unit = "linear_activation_hopper"))]
pub mod linear_activation_hopper;
#[cfg(any(not(unit), unit = "linear_fp8_block_hopper"))]
pub mod linear_fp8_block_hopper;
#[cfg(any(not(unit), unit = "linear_fp8_hopper"))]
pub mod linear_fp8_hopper;
#[cfg(any(not(unit), unit = "linear_fp8_promoted_hopper"))]
pub mod linear_fp8_promoted_hopper;
#[cfg(any(not(unit), unit = "linear_gated_activation"))]
pub mod linear_gated_activation;
#[cfg(any(not(unit), unit = "linear_gated_activation_hopper"))]
pub mod linear_gated_activation_hopper;
#[cfg(any(not(unit), unit = "linear_gated_residual"))]
pub mod linear_gated_residual;
#[cfg(any(not(unit), unit = "linear_gated_residual_hopper"))]
pub mod linear_gated_residual_hopper;
#[cfg(any(not(unit), unit = "linear_hopper"))]
pub mod linear_hopper;
#[cfg(any(not(unit), unit = "modulate"))]
pub mod modulate;
#[cfg(any(not(unit), unit = "norm_gated_residual"))]
pub mod norm_gated_residual;
#[cfg(any(not(unit), unit = "qk_norm_rope"))]
pub mod qk_norm_rope;
#[cfg(any(not(unit), unit = "qk_norm_rope_positions"))]
pub mod qk_norm_rope_positions;
#[cfg(any(not(unit), unit = "quantize_fp8"))]
pub mod quantize_fp8;
#[cfg(any(not(unit), unit = "residual_tanh_gated_rms_norm"))]
pub mod residual_tanh_gated_rms_norm;
#[cfg(any(not(unit), unit = "rms_norm"))]
pub mod rms_norm;
#[cfg(any(not(unit), unit = "rms_norm_backward"))]
pub mod rms_norm_backward;
#[cfg(any(not(unit), unit = "rms_norm_gated"))]
pub mod rms_norm_gated;
#[cfg(any(not(unit), unit = "rope"))]
pub mod rope;
#[cfg(any(not(unit), unit = "rope_positions"))]
pub mod rope_positions;
#[cfg(any(not(unit), unit = "softmax"))]
pub mod softmax;
#[cfg(any(not(unit), unit = "softmax_backward"))]
pub mod softmax_backward;

/// The kernels of each op.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) static KERNELS: &[&[cuda_std::launch::Entry]] = &[
    activation::KERNELS,
    activation_backward::KERNELS,
    ada_norm::KERNELS,
    add_rms_norm::KERNELS,
    attention::KERNELS,
    attention_backward::KERNELS,
    attention_decode::KERNELS,
    attention_hopper::KERNELS,
    cross_entropy::KERNELS,
    cross_entropy_backward::KERNELS,
    gated_activation::KERNELS,
    gated_activation_backward::KERNELS,
    gated_residual::KERNELS,
    gated_residual_ada_norm::KERNELS,
    gated_residual_backward::KERNELS,
    layer_norm::KERNELS,
    layer_norm_backward::KERNELS,
    linear::KERNELS,
    linear_activation::KERNELS,
    linear_activation_hopper::KERNELS,
    linear_fp8_block_hopper::KERNELS,
    linear_fp8_hopper::KERNELS,
    linear_fp8_promoted_hopper::KERNELS,
    linear_gated_activation::KERNELS,
    linear_gated_activation_hopper::KERNELS,
    linear_gated_residual::KERNELS,
    linear_gated_residual_hopper::KERNELS,
    linear_hopper::KERNELS,
    modulate::KERNELS,
    norm_gated_residual::KERNELS,
    qk_norm_rope::KERNELS,
    qk_norm_rope_positions::KERNELS,
    quantize_fp8::KERNELS,
    residual_tanh_gated_rms_norm::KERNELS,
    rms_norm::KERNELS,
    rms_norm_backward::KERNELS,
    rms_norm_gated::KERNELS,
    rope::KERNELS,
    rope_positions::KERNELS,
    softmax::KERNELS,
    softmax_backward::KERNELS,
];
