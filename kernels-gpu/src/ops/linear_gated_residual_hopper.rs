//! The op `linear_gated_residual` for Hopper (sm_90a only): `y = residual + gate * (x wᵀ + bias)`.
//!
//! The kernels compute `x wᵀ + bias` with tile sizes and in the order of additions of the Hopper kernels of
//! the op `linear`. The name of a kernel states the rows and columns of a tile.
use cuda_std::entry;
use cuda_std::tensor_map::TensorMap;
use half::{bf16, f16};

#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::epilogue::gated_residual::GatedResidual;
use crate::gemm::epilogue::gated_residual::GatedResidualParams;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::hopper::kernel::gemm;
use crate::gemm::hopper::params::GemmParams;
#[cfg(not(target_arch = "nvptx64"))]
use crate::gemm::hopper::params::{T128X128_OPERAND, T128X192_OPERAND, T192X192_OPERAND, T256X128_OPERAND};
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::hopper::shape::{
    Kernel128x128Operand, Kernel128x192Operand, Kernel192x192Operand, Kernel256x128Operand,
};

entry! {
    @shared(|_block| T128X128_OPERAND.shared_bytes())
    @only(sm_90a) linear_gated_residual_hopper_128x128_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, _residual: TensorMap, p: GemmParams, e: GatedResidualParams) =>
        gemm::<Kernel128x128Operand<T, GatedResidual<true>>>(&p, GatedResidual(e));
    @shared(|_block| T128X192_OPERAND.shared_bytes())
    @only(sm_90a) linear_gated_residual_hopper_128x192_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, _residual: TensorMap, p: GemmParams, e: GatedResidualParams) =>
        gemm::<Kernel128x192Operand<T, GatedResidual<true>>>(&p, GatedResidual(e));
    @shared(|_block| T192X192_OPERAND.shared_bytes())
    @only(sm_90a) linear_gated_residual_hopper_192x192_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, _residual: TensorMap, p: GemmParams, e: GatedResidualParams) =>
        gemm::<Kernel192x192Operand<T, GatedResidual<true>>>(&p, GatedResidual(e));
    @shared(|_block| T256X128_OPERAND.shared_bytes())
    @only(sm_90a) linear_gated_residual_hopper_256x128_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, _residual: TensorMap, p: GemmParams, e: GatedResidualParams) =>
        gemm::<Kernel256x128Operand<T, GatedResidual<true>>>(&p, GatedResidual(e))
}
