//! The op `linear`: `y = x wᵀ + bias`. The module [`mma`](crate::gemm::mma) contains the code of these
//! kernels.
//!
//! The name of a kernel states the rows and columns of its tiles. Only the `general` kernel supports rows of
//! `x` and `w` that are not aligned to 16 bytes. For each element of `y`, every kernel adds the products in
//! ascending order of K, in one f32 accumulator. It then adds the bias in f32 and rounds the sum once. All
//! kernels therefore give the same bits.
// The tensor-core instructions of these kernels need sm_80.
#![cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]

use cuda_std::prelude::*;

use crate::gemm::epilogue::identity::Identity;
use crate::gemm::mma::params::LinearParams;
#[cfg(not(target_arch = "nvptx64"))]
use crate::gemm::mma::params::{T64X64, T128X128};
use crate::gemm::mma::tiles::{tile_64x64, tile_128x128};

entry! {
    @shared(|_block| T128X128.shared_bytes())
    linear_128x128_smem<T: [f16, bf16]>(p: LinearParams) => tile_128x128::<T, _>(&p, Identity);
    @shared(|_block| T64X64.shared_bytes())
    linear_64x64_smem<T: [f16, bf16]>(p: LinearParams) => tile_64x64::<T, _, true>(&p, Identity);
    @shared(|_block| T64X64.shared_bytes())
    linear_64x64_general_smem<T: [f16, bf16]>(p: LinearParams) => tile_64x64::<T, _, false>(&p, Identity)
}
