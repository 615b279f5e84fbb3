//! The op `linear_activation`: `y = f(x wᵀ + bias)` with an activation function `f`.
//!
//! The kernels compute `x wᵀ + bias` with the same tiles and in the same order of additions as the kernels of
//! the op `linear`. The name of a kernel states the rows and columns of a tile of `x wᵀ`.
// The tensor-core instructions of these kernels need sm_80.
#![cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]

use cuda_std::prelude::*;

use crate::elementwise::activations::ActivationParams;
use crate::gemm::epilogue::activation::Activation;
use crate::gemm::mma::params::LinearParams;
#[cfg(not(target_arch = "nvptx64"))]
use crate::gemm::mma::params::{T64X64, T128X128};
use crate::gemm::mma::tiles::{tile_64x64, tile_128x128};

entry! {
    @shared(|_block| T128X128.shared_bytes())
    linear_activation_128x128_smem<T: [f16, bf16]>(p: LinearParams, e: ActivationParams) => tile_128x128::<T, _>(&p, Activation(e));
    @shared(|_block| T64X64.shared_bytes())
    linear_activation_64x64_smem<T: [f16, bf16]>(p: LinearParams, e: ActivationParams) => tile_64x64::<T, _, true>(&p, Activation(e));
    @shared(|_block| T64X64.shared_bytes())
    linear_activation_64x64_general_smem<T: [f16, bf16]>(p: LinearParams, e: ActivationParams) =>
        tile_64x64::<T, _, false>(&p, Activation(e))
}
