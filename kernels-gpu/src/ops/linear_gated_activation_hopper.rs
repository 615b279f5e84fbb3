//! The op `linear_gated_activation` for Hopper (sm_90a only): `y = f(gate) * up`. `gate` and `up` are the two
//! halves of the columns of `x wᵀ + bias`.
//!
//! The kernels compute `x wᵀ + bias` with tile sizes and in the order of additions of the Hopper kernels of
//! the op `linear`. The name of a kernel states the rows and columns of a tile of `x wᵀ`, which has twice as
//! many columns as the tile of `y`.
use cuda_std::entry;
use cuda_std::tensor_map::TensorMap;
use half::{bf16, f16};

#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::epilogue::gated_activation::GatedActivation;
use crate::gemm::epilogue::gated_activation::GatedActivationParams;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::hopper::kernel::gemm;
use crate::gemm::hopper::params::GemmParams;
#[cfg(not(target_arch = "nvptx64"))]
use crate::gemm::hopper::params::{T128X128, T128X256, T256X128};
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::hopper::shape::{Kernel128x128, Kernel128x256, Kernel256x128};

entry! {
    @shared(|_block| T128X128.shared_bytes())
    @only(sm_90a) linear_gated_activation_hopper_128x128_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams, e: GatedActivationParams) =>
        gemm::<Kernel128x128<T, GatedActivation>>(&p, GatedActivation(e));
    @shared(|_block| T128X256.shared_bytes())
    @only(sm_90a) linear_gated_activation_hopper_128x256_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams, e: GatedActivationParams) =>
        gemm::<Kernel128x256<T, GatedActivation>>(&p, GatedActivation(e));
    @shared(|_block| T256X128.shared_bytes())
    @only(sm_90a) linear_gated_activation_hopper_256x128_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams, e: GatedActivationParams) =>
        gemm::<Kernel256x128<T, GatedActivation>>(&p, GatedActivation(e))
}
