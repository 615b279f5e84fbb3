//! GPU kernels of oxiwarp: one file in [`ops`] per operator, and modules that several operators share.
//!
//! `cuda_builder` compiles this crate to PTX. A build for the host exports [`kernels`], the list of kernels
//! that the CPU executor runs in tests. Kernel arguments are numbers, pointers and `repr(C)` structs. The
//! host crate fills in these structs.
#![cfg_attr(test, allow(dead_code))]
// cuda_builder compiles each operator as a separate unit. A unit without kernels does not use the feature
// `abi_ptx`, and rustc would warn about it. For example, the attention units are empty on sm_75.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx), allow(unused_features))]

#[cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod attention;
pub mod elementwise;
pub mod heads;
pub mod layout;
pub mod norm;
pub mod norm_backward;
// Unit tests do not need the operators, which take most of the compile time of this crate.
#[cfg(not(test))]
pub mod ops;
pub mod rms;
pub mod softmax;

/// Returns every kernel of this crate, for the CPU executor.
#[cfg(not(any(target_arch = "nvptx64", test)))]
pub fn kernels() -> impl Iterator<Item = &'static cuda_std::cpu::Kernel> {
    ops::KERNELS.iter().copied().flatten().copied().flatten()
}
