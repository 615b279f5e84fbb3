//! One op, one file.
pub mod add_rms_norm;
pub mod rms_norm;
pub mod softmax;

/// The kernels of each op.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) static KERNELS: &[&[&[cuda_std::cpu::Kernel]]] =
    &[rms_norm::KERNELS, add_rms_norm::KERNELS, softmax::KERNELS];
