//! The op `linear`: `y = epilogue(x wᵀ + bias)`. The module [`mma`](crate::gemm::mma) contains the code of
//! these kernels.
//!
//! A kernel's name has the rows and columns of its tile. Only the `general` kernel supports rows of `x` and
//! `w` that are not aligned to 16 bytes. Every kernel adds the products of a row and a column in the order of
//! K, in one f32 accumulator, then adds the bias in f32, and rounds the epilogue's value once. So all kernels
//! give the same bits.
// The tensor-core instructions of these kernels need sm_80.
#![cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]

use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use crate::gemm::epilogue::{Epilogue, Identity};
use crate::gemm::mma::kernel::multiply_tile;
use crate::gemm::mma::params::{LinearParams, WarpTile};

/// The tile sizes of the kernels.
pub mod tiles {
    use super::WarpTile;

    /// 128 x 128.
    pub const T128: WarpTile = WarpTile { rows16: 4, columns16: 4 };
    /// 64 x 64.
    pub const T64: WarpTile = WarpTile { rows16: 2, columns16: 2 };
}

/// Computes a tile of 128 x 128.
///
/// # Safety
/// The host created `p` for this launch.
#[inline(always)]
unsafe fn large<T: MatrixElem, E: Epilogue>(p: &LinearParams) {
    // A thread has 128 accumulators and 64 registers of operands. With these launch bounds, ptxas gives it
    // up to 255 registers.
    thread::launch_bounds::<128, 2>();
    // SAFETY: the host created `p` for this launch, and `entry!` sets the shared memory.
    unsafe { multiply_tile::<T, E, 4, 4, 8, true>(p) }
}

/// Computes a tile of 64 x 64.
///
/// # Safety
/// The host created `p` for this launch.
#[inline(always)]
unsafe fn small<T: MatrixElem, E: Epilogue, const VECTOR: bool>(p: &LinearParams) {
    thread::launch_bounds::<128, 4>();
    // SAFETY: the host created `p` for this launch, and `entry!` sets the shared memory.
    unsafe { multiply_tile::<T, E, 2, 2, 4, VECTOR>(p) }
}

entry! {
    @shared(|_block| tiles::T128.shared_bytes())
    linear_128x128_smem<T: [f16, bf16]>(p: LinearParams) => large::<T, Identity>(&p);
    @shared(|_block| tiles::T64.shared_bytes())
    linear_64x64_smem<T: [f16, bf16]>(p: LinearParams) => small::<T, Identity, true>(&p);
    @shared(|_block| tiles::T64.shared_bytes())
    linear_64x64_general_smem<T: [f16, bf16]>(p: LinearParams) => small::<T, Identity, false>(&p)
}
