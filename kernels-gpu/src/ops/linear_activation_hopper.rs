//! The op `linear_activation` for Hopper (sm_90a only): `y = f(x wᵀ + bias)` with an activation function `f`.
//!
//! The kernels compute `x wᵀ + bias` with tile sizes and in the order of additions of the Hopper kernels of
//! the op `linear`. The name of a kernel states the rows and columns of a tile of `x wᵀ`.
use cuda_std::entry;
use cuda_std::tensor_map::TensorMap;
use half::{bf16, f16};

use crate::elementwise::activations::ActivationParams;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::epilogue::activation::Activation;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::hopper::kernel::gemm;
use crate::gemm::hopper::params::GemmParams;
#[cfg(not(target_arch = "nvptx64"))]
use crate::gemm::hopper::params::{T128X128, T128X192, T192X192, T256X128};
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::hopper::shape::{Kernel128x128, Kernel128x192, Kernel192x192, Kernel256x128};

entry! {
    @shared(|_block| T128X128.shared_bytes())
    @only(sm_90a) linear_activation_hopper_128x128_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams, e: ActivationParams) =>
        gemm::<Kernel128x128<T, Activation>>(&p, Activation(e));
    @shared(|_block| T128X192.shared_bytes())
    @only(sm_90a) linear_activation_hopper_128x192_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams, e: ActivationParams) =>
        gemm::<Kernel128x192<T, Activation>>(&p, Activation(e));
    @shared(|_block| T192X192.shared_bytes())
    @only(sm_90a) linear_activation_hopper_192x192_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams, e: ActivationParams) =>
        gemm::<Kernel192x192<T, Activation>>(&p, Activation(e));
    @shared(|_block| T256X128.shared_bytes())
    @only(sm_90a) linear_activation_hopper_256x128_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams, e: ActivationParams) =>
        gemm::<Kernel256x128<T, Activation>>(&p, Activation(e))
}
