//! One op, one file.
pub mod activation;
pub mod activation_backward;
pub mod add_rms_norm;
pub mod gated_activation;
pub mod gated_activation_backward;
pub mod rms_norm;

/// The kernels of each op.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) static KERNELS: &[&[&[cuda_std::cpu::Kernel]]] = &[
    rms_norm::KERNELS,
    add_rms_norm::KERNELS,
    activation::KERNELS,
    activation_backward::KERNELS,
    gated_activation::KERNELS,
    gated_activation_backward::KERNELS,
];
