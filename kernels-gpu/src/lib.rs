//! oxiwarp's kernels, one file per op, and nothing else.
//!
//! `cuda_builder` compiles this crate to PTX; compiled for the host it gives [`kernels`] to the CPU executor.
//! Arguments that are more than a number are `repr(C)` types, which the host crate fills in.
// Without a kernel (on sm_75 there are none on tensor cores) nothing uses the feature.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx), allow(unused_features))]

#[cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod attention;
pub mod elementwise;
pub mod heads;
pub mod layout;
pub mod norm;
pub mod norm_backward;
pub mod ops;
pub mod rms;
pub mod softmax;

/// Every kernel of this crate, for the CPU executor.
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernels() -> impl Iterator<Item = &'static cuda_std::cpu::Kernel> {
    ops::KERNELS.iter().copied().flatten().copied().flatten()
}
