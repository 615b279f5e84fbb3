//! The op `linear_activation` for Hopper (sm_90a only): `y = f(x wᵀ + bias)` with an activation function `f`.
//!
//! The kernels compute `x wᵀ + bias` with tile sizes and in the order of additions of the Hopper kernels of
//! the op `linear`. The name of a kernel states the rows and columns of a tile of `x wᵀ`.
use cuda_std::tensor_map::TensorMap;
use half::{bf16, f16};

use crate::elementwise::activations::ActivationParams;
use crate::gemm::epilogue::activation::Activation;
use crate::gemm::hopper::entries::hopper_products;
use crate::gemm::hopper::params::GemmParams;

hopper_products! {
    (_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams, e: ActivationParams) => Activation, (&p, Activation(e));
    linear_activation_hopper_128x128_smem<T: [f16, bf16]>(Kernel128x128<T>);
    linear_activation_hopper_128x192_smem<T: [f16, bf16]>(Kernel128x192<T>);
    linear_activation_hopper_192x192_smem<T: [f16, bf16]>(Kernel192x192<T>);
    linear_activation_hopper_256x128_smem<T: [f16, bf16]>(Kernel256x128<T>);
    linear_activation_hopper_64x16_smem<T: [f16, bf16]>(Kernel64x16<T>);
    linear_activation_hopper_64x16_half_smem<T: [f16, bf16]>(Kernel64x16Half<T>);
    linear_activation_hopper_64x32_half_smem<T: [f16, bf16]>(Kernel64x32Half<T>);
    linear_activation_hopper_64x32_smem<T: [f16, bf16]>(Kernel64x32<T>);
    linear_activation_hopper_64x64_smem<T: [f16, bf16]>(Kernel64x64<T>)
}
