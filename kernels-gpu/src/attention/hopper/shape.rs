//! Compile-time sizes and types of a Hopper attention kernel.
use core::marker::PhantomData;

use cuda_std::elem::Elem;
use cuda_std::hopper::wgmma::{Accumulator, Operand, Registers};

use super::params::{D64, D96, D128, D128_EVEN, D256, GROUP_ROWS};

/// The types and sizes of a Hopper attention kernel, as associated types and constants.
pub(crate) trait Shape: Copy {
    /// The element type of queries, keys, values and result.
    type Elem: Operand + Elem<F32Vec = [f32; 8]>;
    /// The `wgmma` accumulator registers in which a thread has its scores of a key tile.
    type Scores: Accumulator<Element = f32>;
    /// Registers of a thread for the result: an accumulator of `wgmma`.
    type Result: Accumulator<Element = f32>;
    /// A thread's unnormalized probabilities for a key tile, rounded to the element type. One array element
    /// contains this thread's probabilities for 16 keys.
    type Weights: Copy + AsRef<[[u32; 4]]> + AsMut<[[u32; 4]]>;
    /// Initial value of `Weights`. All probabilities are zero.
    const NO_WEIGHTS: Self::Weights;
    /// Largest head dimension. For a smaller head dimension, TMA fills the missing columns of a tile with
    /// zeros.
    const DIM: u32 = 2 * Self::Result::LEN as u32;
    /// Keys per tile.
    const KEYS: u32 = 2 * Self::Scores::LEN as u32;
    /// Queries per tile.
    const ROWS: u32 = GROUP_ROWS * Self::GROUPS;
    /// Number of consumer warpgroups, which compute 64 queries each.
    const GROUPS: u32;
    /// True if the consumer warpgroups start their matrix multiplications in a fixed order (ping-pong).
    const PING_PONG: bool = Self::GROUPS > 2;
    /// Pipeline stages. Each stage has one buffer for a key tile and one buffer for a value tile.
    const STAGES: u32;
    /// True if TMA stores the result from shared memory. If false, threads store the result from registers.
    const STAGED: bool;
    /// True if the attention is causal.
    const CAUSAL: bool;
    /// True if there is a mask. The mask is the same for all queries.
    const PADDED: bool;
}

/// The sizes of a kernel for head dimensions up to `2 * O`, with `2 * S` keys per key tile. `P` is the number
/// of 16-key blocks of a key tile, so it must be `S / 8`.
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
    T: Operand + Elem<F32Vec = [f32; 8]>,
    Registers<S>: Accumulator<Element = f32>,
    Registers<O>: Accumulator<Element = f32>,
{
    type Elem = T;
    type Scores = Registers<S>;
    type Result = Registers<O>;
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
        /// The [`Shape`] of a kernel with the tile sizes of a constant in the module `params`. For example,
        /// `Kernel64` has the tile sizes `D64`.
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
