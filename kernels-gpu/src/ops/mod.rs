//! One op, one file, one feature: the unit in which the builder compiles PTX. Those on tensor cores have no sm_75.
#[cfg(feature = "activation")]
pub mod activation;
#[cfg(feature = "activation_backward")]
pub mod activation_backward;
#[cfg(feature = "ada_norm")]
pub mod ada_norm;
#[cfg(feature = "add_rms_norm")]
pub mod add_rms_norm;
#[cfg(all(feature = "attention", any(target_feature = "sm_80", not(target_arch = "nvptx64"))))]
pub mod attention;
#[cfg(all(feature = "attention_backward", any(target_feature = "sm_80", not(target_arch = "nvptx64"))))]
pub mod attention_backward;
#[cfg(all(feature = "attention_decode", any(target_feature = "sm_80", not(target_arch = "nvptx64"))))]
pub mod attention_decode;
#[cfg(all(feature = "attention_hopper", target_feature = "sm_90a"))]
pub mod attention_hopper;
#[cfg(feature = "cross_entropy")]
pub mod cross_entropy;
#[cfg(feature = "cross_entropy_backward")]
pub mod cross_entropy_backward;
#[cfg(feature = "gated_activation")]
pub mod gated_activation;
#[cfg(feature = "gated_activation_backward")]
pub mod gated_activation_backward;
#[cfg(feature = "gated_residual")]
pub mod gated_residual;
#[cfg(feature = "gated_residual_ada_norm")]
pub mod gated_residual_ada_norm;
#[cfg(feature = "layer_norm")]
pub mod layer_norm;
#[cfg(feature = "layer_norm_backward")]
pub mod layer_norm_backward;
#[cfg(feature = "qk_norm_rope")]
pub mod qk_norm_rope;
#[cfg(feature = "residual_tanh_gated_rms_norm")]
pub mod residual_tanh_gated_rms_norm;
#[cfg(feature = "rms_norm")]
pub mod rms_norm;
#[cfg(feature = "rms_norm_backward")]
pub mod rms_norm_backward;
#[cfg(feature = "rms_norm_gated")]
pub mod rms_norm_gated;
#[cfg(feature = "rope")]
pub mod rope;
#[cfg(feature = "softmax")]
pub mod softmax;
#[cfg(feature = "softmax_backward")]
pub mod softmax_backward;

/// The kernels of each op.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) static KERNELS: &[&[&[cuda_std::cpu::Kernel]]] = &[
    activation::KERNELS,
    activation_backward::KERNELS,
    ada_norm::KERNELS,
    add_rms_norm::KERNELS,
    attention::KERNELS,
    attention_backward::KERNELS,
    attention_decode::KERNELS,
    cross_entropy::KERNELS,
    cross_entropy_backward::KERNELS,
    gated_activation::KERNELS,
    gated_activation_backward::KERNELS,
    gated_residual::KERNELS,
    gated_residual_ada_norm::KERNELS,
    layer_norm::KERNELS,
    layer_norm_backward::KERNELS,
    qk_norm_rope::KERNELS,
    residual_tanh_gated_rms_norm::KERNELS,
    rms_norm::KERNELS,
    rms_norm_backward::KERNELS,
    rms_norm_gated::KERNELS,
    rope::KERNELS,
    softmax::KERNELS,
    softmax_backward::KERNELS,
];
