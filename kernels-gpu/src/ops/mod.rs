//! One op, one file, one feature: the unit in which the builder compiles PTX.
#[cfg(feature = "ada_norm")]
pub mod ada_norm;
#[cfg(feature = "add_rms_norm")]
pub mod add_rms_norm;
#[cfg(feature = "gated_residual")]
pub mod gated_residual;
#[cfg(feature = "gated_residual_ada_norm")]
pub mod gated_residual_ada_norm;
#[cfg(feature = "layer_norm")]
pub mod layer_norm;
#[cfg(feature = "residual_tanh_gated_rms_norm")]
pub mod residual_tanh_gated_rms_norm;
#[cfg(feature = "rms_norm")]
pub mod rms_norm;

/// The kernels of each op.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) static KERNELS: &[&[&[cuda_std::cpu::Kernel]]] = &[
    ada_norm::KERNELS,
    add_rms_norm::KERNELS,
    gated_residual::KERNELS,
    gated_residual_ada_norm::KERNELS,
    layer_norm::KERNELS,
    residual_tanh_gated_rms_norm::KERNELS,
    rms_norm::KERNELS,
];
