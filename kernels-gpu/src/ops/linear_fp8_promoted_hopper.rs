//! The op `linear_fp8` for Hopper (sm_90a only), with sums in f32, and for results with few rows.
//!
//! The tensor core adds the products of 128 elements of K in its accumulator. The kernel adds these
//! accumulators to sums in f32, in ascending order of K. All kernels therefore give the same bits. The name
//! of a kernel states the rows and columns of its tiles. In kernels that start with 64, these are rows and
//! columns of `yᵀ`: see the op `linear`.
use cuda_std::tensor_map::TensorMap;
use half::{bf16, f16};

use crate::gemm::epilogue::identity::Identity;
use crate::gemm::epilogue::scaled::{RowScales, ScaledProduct};
use crate::gemm::hopper::entries::hopper_products;
use crate::gemm::hopper::params::GemmParams;
use crate::gemm::hopper::shape::E4m3Product;

hopper_products! {
    (_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams, s: RowScales) =>
        ScaledProduct<RowScales, Identity>, (&p, ScaledProduct(s, Identity));
    linear_fp8_promoted_hopper_128x128_smem<T: [f16, bf16]>(Kernel128x128Promoted<E4m3Product<T, true>>);
    linear_fp8_promoted_hopper_128x192_smem<T: [f16, bf16]>(Kernel128x192Promoted<E4m3Product<T, true>>);
    linear_fp8_promoted_hopper_64x16_smem<T: [f16, bf16]>(Kernel64x16<E4m3Product<T, true>>);
    linear_fp8_promoted_hopper_64x16_half_smem<T: [f16, bf16]>(Kernel64x16Half<E4m3Product<T, true>>);
    linear_fp8_promoted_hopper_64x32_half_smem<T: [f16, bf16]>(Kernel64x32Half<E4m3Product<T, true>>);
    linear_fp8_promoted_hopper_64x32_smem<T: [f16, bf16]>(Kernel64x32<E4m3Product<T, true>>);
    linear_fp8_promoted_hopper_64x64_smem<T: [f16, bf16]>(Kernel64x64<E4m3Product<T, true>>)
}
