//! Compile-time sizes and types of a matrix product on Hopper.
use core::marker::PhantomData;

use cuda_std::elem::Elem;
use cuda_std::hopper::wgmma::{Accumulator, E4m3, Operand, Registers};
use half::{bf16, f16};

use super::params::{
    DEPTH, GemmTile, SLICE, T64X16, T64X16_HALF, T64X32, T64X32_HALF, T64X64, T128X128, T128X128_OPERAND,
    T128X128_PROMOTED, T128X192, T128X192_OPERAND, T128X192_PROMOTED, T128X256, T192X192, T192X192_OPERAND,
    T256X128, T256X192,
};
use crate::gemm::epilogue::Epilogue;

/// The element types of a matrix product.
pub(crate) trait ProductTypes: Copy {
    /// The element type of `x` and `w`.
    type Input: Operand;
    /// The element type of `y` and of the bias.
    type Output: Elem<F32Vec = [f32; 8]>;
    /// Whether the kernel adds the accumulators of `wgmma` to f32 sums after every 128 bytes of K. For 8-bit
    /// floats, the tensor core keeps only 14 significant bits of a sum, so long sums in its accumulators are
    /// inaccurate.
    const PROMOTES: bool = false;
}

macro_rules! same_types {
    ($($t:ty),*) => { $(
        impl ProductTypes for $t {
            type Input = $t;
            type Output = $t;
        }
    )* };
}
same_types!(f16, bf16);

/// The types of a product of [`E4m3`] matrices with a result of type `T`.
#[derive(Clone, Copy)]
pub(crate) struct E4m3Product<T, const PROMOTES: bool>(PhantomData<T>);

impl<T: Elem<F32Vec = [f32; 8]>, const PROMOTES: bool> ProductTypes for E4m3Product<T, PROMOTES> {
    type Input = E4m3;
    type Output = T;
    const PROMOTES: bool = PROMOTES;
}

/// The types and sizes of a matrix multiplication kernel, as associated types and constants.
pub(crate) trait GemmKernel: Copy {
    /// The element types.
    type Types: ProductTypes<Output = Self::Elem>;
    /// The element type of `y`.
    type Elem: Elem<F32Vec = [f32; 8]>;
    /// A thread's accumulators of 64 rows.
    type Sums: Accumulator<Element = f32>;
    /// A thread's accumulators of its warpgroup's rows.
    type Tile: Copy + AsRef<[Self::Sums]> + AsMut<[Self::Sums]>;
    /// The last step of the product.
    type Epilogue: Epilogue;
    /// Initial value of the accumulators.
    const ZERO: Self::Tile;
    /// The tile sizes.
    const TILE: GemmTile;
    /// Bytes of a buffer for a tile of `x`.
    const X_BYTES: u32 = Self::TILE.rows() * DEPTH * 2;
    /// Bytes of a buffer for a tile of `w`.
    const W_BYTES: u32 = Self::TILE.columns * DEPTH * 2;
    /// Whether TMA loads the operand of the epilogue that has the rows and columns of the result.
    const LOADS_OPERAND: bool = Self::Epilogue::OPERAND && !Self::TILE.transposed;
    /// Consumer warps of a block.
    const WARPS: u32 = 4 * Self::TILE.groups;
    /// Columns of `y` per tile.
    const COLUMNS: u32 = Self::TILE.columns / if Self::Epilogue::HALVES { 2 } else { 1 };
    /// Number of times that a warp fills a staging buffer (shared memory) with results, which TMA then
    /// stores. Each time, the buffer gets 64 columns of the warp's rows in one block of 64 rows.
    const PARTS: u32 = Self::COLUMNS / SLICE * Self::TILE.blocks;
    /// The number of rows and of columns of `y` that the tiles of a cluster's blocks have together.
    const CLUSTER_SIZE: [u32; 2] = [
        Self::TILE.cluster_size()[0],
        Self::TILE.cluster_size()[1] / if Self::Epilogue::HALVES { 2 } else { 1 },
    ];
}

/// The sizes of a kernel whose consumer warpgroups compute `B` blocks of 64 rows and `2 * N` columns each.
/// [`GemmTile`] documents the other parameters.
#[derive(Clone, Copy)]
pub(crate) struct GemmShape<
    T,
    E,
    const N: usize,
    const B: usize,
    const GROUPS: u32,
    const STAGES: u32,
    const STAGING: u32,
    const CLUSTER: u32,
    const SHARES_X: bool,
    const PING_PONG: bool,
    const TRANSPOSED: bool,
>(PhantomData<(T, E)>);

impl<
    T,
    E,
    const N: usize,
    const B: usize,
    const GROUPS: u32,
    const STAGES: u32,
    const STAGING: u32,
    const CLUSTER: u32,
    const SHARES_X: bool,
    const PING_PONG: bool,
    const TRANSPOSED: bool,
> GemmKernel for GemmShape<T, E, N, B, GROUPS, STAGES, STAGING, CLUSTER, SHARES_X, PING_PONG, TRANSPOSED>
where
    T: ProductTypes,
    E: Epilogue,
    Registers<N>: Accumulator<Element = f32>,
{
    type Types = T;
    type Elem = T::Output;
    type Sums = Registers<N>;
    type Tile = [Registers<N>; B];
    type Epilogue = E;
    const ZERO: Self::Tile = [<Registers<N> as Accumulator>::ZERO; B];
    const TILE: GemmTile = GemmTile {
        blocks: B as u32,
        columns: 2 * N as u32,
        groups: GROUPS,
        stages: STAGES,
        staging: STAGING,
        cluster: CLUSTER,
        shares_x: SHARES_X,
        ping_pong: PING_PONG,
        transposed: TRANSPOSED,
    };
}

macro_rules! kernels {
    ($($name:ident: $tile:ident;)*) => { $(
        /// The kernel with the tile sizes of a constant in the module `params`. For example, `Kernel128x192`
        /// has the tile sizes `T128X192`. `T` has the element types.
        pub(crate) type $name<T, E> = GemmShape<
            T,
            E,
            { $tile.columns as usize / 2 },
            { $tile.blocks as usize },
            { $tile.groups },
            { $tile.stages },
            { $tile.staging },
            { $tile.cluster },
            { $tile.shares_x },
            { $tile.ping_pong },
            { $tile.transposed },
        >;
    )* };
}
kernels! {
    Kernel64x16: T64X16;
    Kernel64x16Half: T64X16_HALF;
    Kernel64x32Half: T64X32_HALF;
    Kernel64x32: T64X32;
    Kernel64x64: T64X64;
    Kernel128x128: T128X128;
    Kernel128x192: T128X192;
    Kernel128x256: T128X256;
    Kernel192x192: T192X192;
    Kernel256x128: T256X128;
    Kernel256x192: T256X192;
    Kernel128x128Operand: T128X128_OPERAND;
    Kernel128x192Operand: T128X192_OPERAND;
    Kernel192x192Operand: T192X192_OPERAND;
    Kernel128x128Promoted: T128X128_PROMOTED;
    Kernel128x192Promoted: T128X192_PROMOTED;
}
