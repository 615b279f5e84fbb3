//! The op `linear` for Hopper (sm_90a only): `y = x wᵀ + bias`.
//!
//! For each element of `y`, a kernel adds the products in ascending order of K, in one f32 accumulator. Then
//! it adds the bias in f32 and rounds the sum once. All kernels therefore give the same bits, and the host
//! can choose the fastest one for each shape.
//!
//! The name of a kernel states the rows and columns of its tiles. The kernels for a `y` with few rows compute
//! tiles of `yᵀ`. The first number in their names therefore counts columns of `y`, and the second one rows of
//! `y`. They get `w` as the argument `_x`, and `x` as the argument `_w`. The two blocks of a cluster load the
//! tile of one operand only once for both. This operand is `w` in kernels with `half` in their names.
use cuda_std::tensor_map::TensorMap;
use half::{bf16, f16};

use crate::gemm::epilogue::identity::Identity;
use crate::gemm::hopper::entries::hopper_products;
use crate::gemm::hopper::params::GemmParams;

hopper_products! {
    (_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams) => Identity, (&p, Identity);
    linear_hopper_128x128_smem<T: [f16, bf16]>(Kernel128x128<T>);
    linear_hopper_128x192_smem<T: [f16, bf16]>(Kernel128x192<T>);
    linear_hopper_128x256_smem<T: [f16, bf16]>(Kernel128x256<T>);
    linear_hopper_192x192_smem<T: [f16, bf16]>(Kernel192x192<T>);
    linear_hopper_256x128_smem<T: [f16, bf16]>(Kernel256x128<T>);
    linear_hopper_256x192_smem<T: [f16, bf16]>(Kernel256x192<T>);
    linear_hopper_64x16_smem<T: [f16, bf16]>(Kernel64x16<T>);
    linear_hopper_64x16_half_smem<T: [f16, bf16]>(Kernel64x16Half<T>);
    linear_hopper_64x32_half_smem<T: [f16, bf16]>(Kernel64x32Half<T>);
    linear_hopper_64x32_smem<T: [f16, bf16]>(Kernel64x32<T>);
    linear_hopper_64x64_smem<T: [f16, bf16]>(Kernel64x64<T>)
}
