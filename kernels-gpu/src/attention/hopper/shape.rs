//! What a kernel of attention is made for.
use core::marker::PhantomData;

use cuda_std::hopper::wgmma::{Accumulator, Operand};

use super::params::{D64, D96, D128, D128_EVEN, D256, GROUP_ROWS};

/// A kernel's types and sizes.
pub(crate) trait Shape: Copy {
    /// The element type.
    type Elem: Operand<F32Vec = [f32; 8]>;
    /// A thread's scores of a tile.
    type Scores: Accumulator;
    /// A thread's part of the result.
    type Result: Accumulator;
    /// A thread's weights of a tile, rounded, for 16 keys each.
    type Weights: Copy + AsRef<[[u32; 4]]> + AsMut<[[u32; 4]]>;
    /// No weights.
    const NO_WEIGHTS: Self::Weights;
    /// The most columns of a head: the copy engine fills the rest with zeros.
    const DIM: u32 = 2 * Self::Result::LEN as u32;
    /// Keys of a tile.
    const KEYS: u32 = 2 * Self::Scores::LEN as u32;
    /// Queries of a tile.
    const ROWS: u32 = GROUP_ROWS * Self::GROUPS;
    /// Warp groups that compute.
    const GROUPS: u32;
    /// Do the warp groups take turns in beginning products?
    const PING_PONG: bool = Self::GROUPS > 2;
    /// Tiles of keys, and as many of values, in flight.
    const STAGES: u32;
    /// Does the copy engine store the result?
    const STAGED: bool;
    /// Do the queries see no later keys?
    const CAUSAL: bool;
    /// Is there a mask of the keys?
    const PADDED: bool;
}

/// Of heads of `2 * O` columns, tiles of `2 * S` and `16 * P` keys.
#[derive(Clone, Copy)]
pub(crate) struct KernelShape<
    T,
    const S: usize,
    const O: usize,
    const P: usize,
    const GROUPS: u32,
    const STAGES: u32,
    const STAGED: bool,
    const CAUSAL: bool,
    const PADDED: bool,
>(PhantomData<T>);

impl<
    T,
    const S: usize,
    const O: usize,
    const P: usize,
    const GROUPS: u32,
    const STAGES: u32,
    const STAGED: bool,
    const CAUSAL: bool,
    const PADDED: bool,
> Shape for KernelShape<T, S, O, P, GROUPS, STAGES, STAGED, CAUSAL, PADDED>
where
    T: Operand<F32Vec = [f32; 8]>,
    [f32; S]: Accumulator,
    [f32; O]: Accumulator,
{
    type Elem = T;
    type Scores = [f32; S];
    type Result = [f32; O];
    type Weights = [[u32; 4]; P];
    const NO_WEIGHTS: Self::Weights = {
        assert!(S == 8 * P);
        [[0; 4]; P]
    };
    const GROUPS: u32 = GROUPS;
    const STAGES: u32 = STAGES;
    const STAGED: bool = STAGED;
    const CAUSAL: bool = CAUSAL;
    const PADDED: bool = PADDED;
}

macro_rules! kernels {
    ($($name:ident: $tiles:ident;)*) => { $(
        /// The kernel of these sizes.
        pub(crate) type $name<T, const CAUSAL: bool, const PADDED: bool> = KernelShape<
            T,
            { $tiles.keys as usize / 2 },
            { $tiles.dim as usize / 2 },
            { $tiles.keys as usize / 16 },
            { $tiles.groups },
            { $tiles.stages },
            { $tiles.staged },
            CAUSAL,
            PADDED,
        >;
    )* };
}
kernels! {
    Kernel64: D64;
    Kernel96: D96;
    Kernel128: D128;
    Kernel128Even: D128_EVEN;
    Kernel256: D256;
}
