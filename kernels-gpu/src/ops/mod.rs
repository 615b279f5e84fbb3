//! One op, one file, one feature: the unit in which the builder compiles PTX.
#[cfg(feature = "add_rms_norm")]
pub mod add_rms_norm;
#[cfg(feature = "rms_norm")]
pub mod rms_norm;

/// The kernels of each op.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) static KERNELS: &[&[&[cuda_std::cpu::Kernel]]] = &[add_rms_norm::KERNELS, rms_norm::KERNELS];
