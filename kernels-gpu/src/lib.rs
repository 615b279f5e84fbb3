//! GPU kernels of oxiwarp: one file in [`ops`] per operator, and modules that several operators share.
//!
//! `cuda_builder` compiles this crate to PTX. A build for the host exports [`entries`], which lists the
//! kernels with their parameters. In a build for the host, each module of [`ops`] also has functions that
//! launch its kernels. Kernel arguments are numbers, pointers and `repr(C)` structs. The host crate fills in
//! these structs.
#![cfg_attr(test, allow(dead_code))]
// cuda_builder compiles each operator as a separate unit. A unit without kernels does not use the feature
// `abi_ptx`, and rustc would warn about the unused feature. For example, the attention units are empty on
// sm_75.
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

/// Returns the entries of this crate, each with its kernels.
#[cfg(not(any(target_arch = "nvptx64", test)))]
pub fn entries() -> impl Iterator<Item = &'static cuda_std::launch::Entry> {
    ops::KERNELS.iter().copied().flatten()
}

/// Returns every kernel of this crate.
#[cfg(not(any(target_arch = "nvptx64", test)))]
pub fn kernels() -> impl Iterator<Item = &'static cuda_std::launch::Kernel> {
    entries().flat_map(cuda_std::launch::Entry::kernels)
}
