//! The op `linear_gated_activation` for Hopper (sm_90a only): `y = f(gate) * up`. `gate` and `up` are the two
//! halves of the columns of `x wᵀ + bias`.
//!
//! The kernels compute `x wᵀ + bias` with tile sizes and in the order of additions of the Hopper kernels of
//! the op `linear`. The name of a kernel states the rows and columns of a tile of `x wᵀ`, which has twice as
//! many columns as the tile of `y`.
use cuda_std::tensor_map::TensorMap;
use half::{bf16, f16};

use crate::gemm::epilogue::gated_activation::{GatedActivation, GatedActivationParams};
use crate::gemm::hopper::entries::hopper_products;
use crate::gemm::hopper::params::GemmParams;

hopper_products! {
    (_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams, e: GatedActivationParams) =>
        GatedActivation, (&p, GatedActivation(e));
    linear_gated_activation_hopper_128x128_smem<T: [f16, bf16]>(Kernel128x128<T>);
    linear_gated_activation_hopper_128x256_smem<T: [f16, bf16]>(Kernel128x256<T>);
    linear_gated_activation_hopper_256x128_smem<T: [f16, bf16]>(Kernel256x128<T>)
}
