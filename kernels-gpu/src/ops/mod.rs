//! One op, one file.
pub mod ada_norm;
pub mod add_rms_norm;
pub mod gated_residual;
pub mod gated_residual_ada_norm;
pub mod layer_norm;
pub mod qk_norm_rope;
pub mod rms_norm;
pub mod rope;

/// The kernels of each op.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) static KERNELS: &[&[&[cuda_std::cpu::Kernel]]] = &[
    ada_norm::KERNELS,
    add_rms_norm::KERNELS,
    gated_residual::KERNELS,
    gated_residual_ada_norm::KERNELS,
    layer_norm::KERNELS,
    qk_norm_rope::KERNELS,
    rms_norm::KERNELS,
    rope::KERNELS,
];
