//! The op `linear_fp8` for Hopper (sm_90a only), with fast accumulation: `y = x_scale * w_scale * (x wᵀ) +
//! bias` for matrices of `float8_e4m3fn`, with one scale per row of `x` and of `w`.
//!
//! The tensor core adds all products of an element of `y` in its accumulator, which keeps 14 significant
//! bits. All kernels give the same bits. The name of a kernel states the rows and columns of its tiles.
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
    linear_fp8_hopper_128x128_smem<T: [f16, bf16]>(Kernel128x128<E4m3Product<T, false>>);
    linear_fp8_hopper_128x192_smem<T: [f16, bf16]>(Kernel128x192<E4m3Product<T, false>>);
    linear_fp8_hopper_128x256_smem<T: [f16, bf16]>(Kernel128x256<E4m3Product<T, false>>);
    linear_fp8_hopper_192x192_smem<T: [f16, bf16]>(Kernel192x192<E4m3Product<T, false>>);
    linear_fp8_hopper_256x128_smem<T: [f16, bf16]>(Kernel256x128<E4m3Product<T, false>>);
    linear_fp8_hopper_256x192_smem<T: [f16, bf16]>(Kernel256x192<E4m3Product<T, false>>)
}
