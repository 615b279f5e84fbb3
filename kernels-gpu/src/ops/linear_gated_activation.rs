//! The op `linear_gated_activation`: `y = f(gate) * up`, where `gate` and `up` are the two halves of the
//! columns of `x wᵀ + bias`.
//!
//! The kernels compute `x wᵀ + bias` with the same tiles and in the same order of additions as the kernels of
//! the op `linear`. The name of a kernel states the rows and columns of a tile of `x wᵀ`, which has twice as
//! many columns as the tile of `y`.
// The tensor-core instructions of these kernels need sm_80.
#![cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]

use cuda_std::prelude::*;

use crate::gemm::epilogue::gated_activation::{GatedActivation, GatedActivationParams};
use crate::gemm::mma::params::LinearParams;
#[cfg(not(target_arch = "nvptx64"))]
use crate::gemm::mma::params::{T64X128, T128X128};
use crate::gemm::mma::tiles::{halves_64x128, halves_128x128};

entry! {
    @shared(|_block| T128X128.shared_bytes())
    linear_gated_activation_128x128_smem<T: [f16, bf16]>(p: LinearParams, e: GatedActivationParams) => halves_128x128::<T, _>(&p, GatedActivation(e));
    @shared(|_block| T64X128.shared_bytes())
    linear_gated_activation_64x128_smem<T: [f16, bf16]>(p: LinearParams, e: GatedActivationParams) => halves_64x128::<T, _, true>(&p, GatedActivation(e));
    @shared(|_block| T64X128.shared_bytes())
    linear_gated_activation_64x128_general_smem<T: [f16, bf16]>(p: LinearParams, e: GatedActivationParams) =>
        halves_64x128::<T, _, false>(&p, GatedActivation(e))
}
