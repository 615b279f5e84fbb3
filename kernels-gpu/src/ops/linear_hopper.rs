//! The op `linear` for Hopper (sm_90a only): `y = x wᵀ + bias`.
//!
//! For each element of `y`, a kernel adds the products in ascending order of K, in one f32 accumulator. Then
//! it adds the bias in f32 and rounds the sum once. All kernels therefore give the same bits, and the host
//! can choose the fastest one for each shape.
//!
//! The name of a kernel states the rows and columns of its tiles. The kernels for a `y` with few rows compute
//! tiles of `yᵀ`. The first number in their names therefore counts columns of `y`, and the second one rows of
//! `y`. The two blocks of a cluster load the tile of one operand only once for both. This operand is `w` in
//! kernels with `half` in their names.
use cuda_std::entry;
use cuda_std::tensor_map::TensorMap;
use half::{bf16, f16};

#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::epilogue::identity::Identity;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::hopper::kernel::gemm;
use crate::gemm::hopper::params::GemmParams;
#[cfg(not(target_arch = "nvptx64"))]
use crate::gemm::hopper::params::{
    T64X16, T64X16_HALF, T64X32, T64X32_HALF, T64X64, T128X128, T128X192, T128X256, T192X192, T256X128,
    T256X192,
};
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::gemm::hopper::shape::{
    Kernel64x16, Kernel64x16Half, Kernel64x32, Kernel64x32Half, Kernel64x64, Kernel128x128, Kernel128x192,
    Kernel128x256, Kernel192x192, Kernel256x128, Kernel256x192,
};

entry! {
    @shared(|_block| T128X128.shared_bytes())
    @only(sm_90a) linear_hopper_128x128_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams) =>
        gemm::<Kernel128x128<T, Identity>>(&p, Identity);
    @shared(|_block| T128X192.shared_bytes())
    @only(sm_90a) linear_hopper_128x192_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams) =>
        gemm::<Kernel128x192<T, Identity>>(&p, Identity);
    @shared(|_block| T128X256.shared_bytes())
    @only(sm_90a) linear_hopper_128x256_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams) =>
        gemm::<Kernel128x256<T, Identity>>(&p, Identity);
    @shared(|_block| T192X192.shared_bytes())
    @only(sm_90a) linear_hopper_192x192_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams) =>
        gemm::<Kernel192x192<T, Identity>>(&p, Identity);
    @shared(|_block| T256X128.shared_bytes())
    @only(sm_90a) linear_hopper_256x128_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams) =>
        gemm::<Kernel256x128<T, Identity>>(&p, Identity);
    @shared(|_block| T256X192.shared_bytes())
    @only(sm_90a) linear_hopper_256x192_smem<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams) =>
        gemm::<Kernel256x192<T, Identity>>(&p, Identity);
    @shared(|_block| T64X16.shared_bytes())
    @only(sm_90a) linear_hopper_64x16_smem<T: [f16, bf16]>(_w: TensorMap, _x: TensorMap, _y: TensorMap, p: GemmParams) =>
        gemm::<Kernel64x16<T, Identity>>(&p, Identity);
    @shared(|_block| T64X16_HALF.shared_bytes())
    @only(sm_90a) linear_hopper_64x16_half_smem<T: [f16, bf16]>(_w: TensorMap, _x: TensorMap, _y: TensorMap, p: GemmParams) =>
        gemm::<Kernel64x16Half<T, Identity>>(&p, Identity);
    @shared(|_block| T64X32_HALF.shared_bytes())
    @only(sm_90a) linear_hopper_64x32_half_smem<T: [f16, bf16]>(_w: TensorMap, _x: TensorMap, _y: TensorMap, p: GemmParams) =>
        gemm::<Kernel64x32Half<T, Identity>>(&p, Identity);
    @shared(|_block| T64X32.shared_bytes())
    @only(sm_90a) linear_hopper_64x32_smem<T: [f16, bf16]>(_w: TensorMap, _x: TensorMap, _y: TensorMap, p: GemmParams) =>
        gemm::<Kernel64x32<T, Identity>>(&p, Identity);
    @shared(|_block| T64X64.shared_bytes())
    @only(sm_90a) linear_hopper_64x64_smem<T: [f16, bf16]>(_w: TensorMap, _x: TensorMap, _y: TensorMap, p: GemmParams) =>
        gemm::<Kernel64x64<T, Identity>>(&p, Identity)
}
