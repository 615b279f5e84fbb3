//! GPU kernels of oxiwarp: one file in [`ops`] per operator, and the modules that the operators share.
//!
//! `cuda_builder` compiles this crate to PTX. A build for the host exports [`kernels`], the table of kernels
//! for the CPU executor. Kernel arguments other than numbers and pointers are `repr(C)` structs, which the
//! host crate fills in.
#![cfg_attr(test, allow(dead_code))]
// A unit without kernels does not use the feature. The attention units are empty on sm_75.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx), allow(unused_features))]

#[cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod attention;
pub mod elementwise;
pub mod heads;
pub mod layout;
pub mod norm;
pub mod norm_backward;
// The unit tests need no operator, and most of the crate's compile time is spent on the operators.
#[cfg(not(test))]
pub mod ops;
pub mod rms;
pub mod softmax;

/// Returns every kernel of this crate, for the CPU executor.
#[cfg(not(any(target_arch = "nvptx64", test)))]
pub fn kernels() -> impl Iterator<Item = &'static cuda_std::cpu::Kernel> {
    ops::KERNELS.iter().copied().flatten().copied().flatten()
}
