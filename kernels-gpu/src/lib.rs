//! The GPU kernels of oxiwarp. The module [`ops`] has one file per operator, and the other modules contain
//! code that several operators share.
//!
//! `cuda_builder` compiles this crate to PTX. Cargo also builds the crate for the host. The host build
//! exports functions that launch the kernels, and the function [`entries`], which lists the kernels with
//! their parameters. Kernel arguments are numbers, pointers and `repr(C)` structs. The crate `host` fills in
//! these structs.
#![cfg_attr(test, allow(dead_code))]
// The attribute `allow(unused_features)` is needed because `cuda_builder` compiles each operator as a
// separate unit, which becomes one PTX file. A unit without kernels does not use the feature `abi_ptx`, so
// rustc would warn about an unused feature. For example, the units of the attention operators have no kernels
// for sm_75.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx), allow(unused_features))]

#[cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod attention;
pub mod elementwise;
pub mod fp8;
#[cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod gemm;
pub mod heads;
pub mod layout;
pub mod norm;
pub mod norm_backward;
// Builds for unit tests omit the operators. Unit tests do not need the operators, and their compilation would
// take most of the compile time.
#[cfg(not(test))]
pub mod ops;
pub mod rms;
pub mod softmax;

/// Returns the entries of this crate. An entry is a list of kernels that differ only in their element type.
#[cfg(not(any(target_arch = "nvptx64", test)))]
pub fn entries() -> impl Iterator<Item = &'static cuda_std::launch::Entry> {
    ops::KERNELS.iter().copied().flatten()
}

/// Returns every kernel of this crate.
#[cfg(not(any(target_arch = "nvptx64", test)))]
pub fn kernels() -> impl Iterator<Item = &'static cuda_std::launch::Kernel> {
    entries().flat_map(cuda_std::launch::Entry::kernels)
}
