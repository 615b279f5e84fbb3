//! The op `linear_gated_residual` for Hopper (sm_90a only): `y = residual + gate * (x wᵀ + bias)`.
//!
//! The kernels compute `x wᵀ + bias` with tile sizes and in the order of additions of the Hopper kernels of
//! the op `linear`. The name of a kernel states the rows and columns of a tile.
//! In kernels that start with 64, these are rows and columns of `yᵀ`: see the op `linear`.
use cuda_std::tensor_map::TensorMap;
use half::{bf16, f16};

use crate::gemm::epilogue::gated_residual::{GatedResidual, GatedResidualParams};
use crate::gemm::hopper::entries::hopper_products;
use crate::gemm::hopper::params::GemmParams;

hopper_products! {
    (_x: TensorMap, _w: TensorMap, _y: TensorMap, _residual: TensorMap, p: GemmParams, e: GatedResidualParams) =>
        GatedResidual<true>, (&p, GatedResidual(e));
    linear_gated_residual_hopper_128x128_smem<T: [f16, bf16]>(Kernel128x128Operand<T>);
    linear_gated_residual_hopper_128x192_smem<T: [f16, bf16]>(Kernel128x192Operand<T>);
    linear_gated_residual_hopper_192x192_smem<T: [f16, bf16]>(Kernel192x192Operand<T>);
    linear_gated_residual_hopper_256x128_smem<T: [f16, bf16]>(Kernel256x128<T>);
    linear_gated_residual_hopper_64x16_smem<T: [f16, bf16]>(Kernel64x16<T>);
    linear_gated_residual_hopper_64x16_half_smem<T: [f16, bf16]>(Kernel64x16Half<T>);
    linear_gated_residual_hopper_64x32_half_smem<T: [f16, bf16]>(Kernel64x32Half<T>);
    linear_gated_residual_hopper_64x32_smem<T: [f16, bf16]>(Kernel64x32<T>);
    linear_gated_residual_hopper_64x64_smem<T: [f16, bf16]>(Kernel64x64<T>)
}
