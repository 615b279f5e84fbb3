//! One op, one file.
pub mod add_rms_norm;
pub mod cross_entropy;
pub mod cross_entropy_backward;
pub mod rms_norm;
pub mod softmax;
pub mod softmax_backward;

/// The kernels of each op.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) static KERNELS: &[&[&[cuda_std::cpu::Kernel]]] = &[
    rms_norm::KERNELS,
    add_rms_norm::KERNELS,
    softmax::KERNELS,
    softmax_backward::KERNELS,
    cross_entropy::KERNELS,
    cross_entropy_backward::KERNELS,
];
