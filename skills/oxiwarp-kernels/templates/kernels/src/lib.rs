//! Four kernels that you can copy: element-wise, row reduction, tiled transpose, and matrix product on tensor
//! cores.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

pub mod log_sum_exp;
// This kernel uses the instructions `mma` and `cp.async`, which need sm_80. The PTX for sm_75 therefore does
// not contain the kernel.
#[cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod matmul;
pub mod softplus;
pub mod transpose;
