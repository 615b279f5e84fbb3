//! The op `linear_gated_residual`: `y = residual + gate * (x wᵀ + bias)`.
//!
//! The kernels compute `x wᵀ + bias` with the same tiles and in the same order of additions as the kernels of
//! the op `linear`. The name of a kernel states the rows and columns of a tile.
// The tensor-core instructions of these kernels need sm_80.
#![cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]

use cuda_std::prelude::*;

use crate::gemm::epilogue::gated_residual::{GatedResidual, GatedResidualParams};
use crate::gemm::mma::params::LinearParams;
#[cfg(not(target_arch = "nvptx64"))]
use crate::gemm::mma::params::{T64X64, T128X128};
use crate::gemm::mma::tiles::{tile_64x64, tile_128x128};

entry! {
    @shared(|_block| T128X128.shared_bytes())
    linear_gated_residual_128x128_smem<T: [f16, bf16]>(p: LinearParams, e: GatedResidualParams) => tile_128x128::<T, _>(&p, GatedResidual::<true>(e));
    @shared(|_block| T64X64.shared_bytes())
    linear_gated_residual_64x64_smem<T: [f16, bf16]>(p: LinearParams, e: GatedResidualParams) => tile_64x64::<T, _, true>(&p, GatedResidual::<true>(e));
    @shared(|_block| T64X64.shared_bytes())
    linear_gated_residual_64x64_general_smem<T: [f16, bf16]>(p: LinearParams, e: GatedResidualParams) =>
        tile_64x64::<T, _, false>(&p, GatedResidual::<false>(e))
}
