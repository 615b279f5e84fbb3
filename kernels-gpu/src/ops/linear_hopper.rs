//! The op `linear` for Hopper (sm_90a only): `y = epilogue(x wᵀ + bias)`.
//!
//! Every kernel adds the products of a row and a column in the order of K, in one f32 accumulator, then adds
//! the bias in f32, and rounds the epilogue's value once. So all kernels give the same bits.
//!
//! A kernel's name has the rows and columns of its tile. `pair_x` and `pair_w` are clusters of two blocks,
//! which share the tile of `x` or of `w`. In `ping` kernels, each consumer warpgroup has its own tile.
use cuda_std::entry;
use cuda_std::tensor_map::TensorMap;
use half::{bf16, f16};

use crate::gemm::epilogue::Identity;
use crate::gemm::hopper::kernel::gemm;
use crate::gemm::hopper::params::{GemmParams, Tile};
use crate::gemm::hopper::shape::{KernelShape, Shape};

macro_rules! kernels {
    ($($name:ident $constant:ident: $registers:literal $blocks:literal $groups:literal $stages:literal $cluster:literal $shares_x:literal $ping_pong:literal;)*) => {
        /// The tile sizes of the kernels.
        pub mod tiles {
            use super::*;
            $(
                #[doc = concat!("The tile of `", stringify!($name), "`.")]
                pub const $constant: Tile = <KernelShape<bf16, Identity, $registers, $blocks, $groups, $stages, $cluster, $shares_x, $ping_pong> as Shape>::TILE;
            )*
        }
        entry! { $(
            @shared(|_block| tiles::$constant.shared_bytes())
            @only(sm_90a) $name<T: [f16, bf16]>(_x: TensorMap, _w: TensorMap, _y: TensorMap, p: GemmParams) =>
                gemm::<KernelShape<T, Identity, $registers, $blocks, $groups, $stages, $cluster, $shares_x, $ping_pong>>(&p)
        );* }
    };
}
kernels! {
    linear_hopper_128x256_smem T128X256: 128 1 2 4 1 false false;
    linear_hopper_128x256_pair_w_smem T128X256_PAIR_W: 128 1 2 4 2 false false;
    linear_hopper_256x128_pair_x_smem T256X128_PAIR_X: 64 2 2 4 2 true false;
    linear_hopper_256x128_smem T256X128: 64 2 2 4 1 false false;
    linear_hopper_128x128_pair_w_ping_smem T128X128_PAIR_W_PING: 64 2 2 6 2 false true;
    linear_hopper_64x256_pair_w_ping_smem T64X256_PAIR_W_PING: 128 1 2 4 2 false true;
    linear_hopper_192x192_smem T192X192: 96 1 3 4 1 false false;
    linear_hopper_192x192_pair_w_smem T192X192_PAIR_W: 96 1 3 4 2 false false;
    linear_hopper_256x192_pair_x_smem T256X192_PAIR_X: 96 2 2 3 2 true false;
    linear_hopper_256x192_smem T256X192: 96 2 2 3 1 false false;
    linear_hopper_128x192_pair_w_ping_smem T128X192_PAIR_W_PING: 96 2 2 5 2 false true;
    linear_hopper_128x128_ping_smem T128X128_PING: 64 2 2 6 1 false true;
}
