//! `softmax(scale q kT) v`: see [`attention`](crate::attention).
//!
//! `_64` to `_256`: for heads of up to so many columns. `_general` has mask, softcap, any scale and any alignment.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use crate::attention::forward::forward;
use crate::attention::{Params, Tiling};

/// The kernels of heads of up to so many columns.
pub struct Kernels {
    /// The most columns.
    pub dim: u32,
    /// The kernel without and with everything that is rarely wanted.
    pub names: [&'static str; 2],
    /// The tiles of each.
    pub tilings: [Tiling; 2],
}

/// All of them, the shortest heads first. The general ones have smaller tiles: with as many scores they would need more
/// registers than there are.
pub const KERNELS_BY_DIM: [Kernels; 5] = [
    Kernels { dim: 64, names: ["attention_64", "attention_64_general"], tilings: [D64, G64] },
    Kernels { dim: 80, names: ["attention_80", "attention_80_general"], tilings: [D80, G80] },
    Kernels { dim: 96, names: ["attention_96", "attention_96_general"], tilings: [D96, G96] },
    Kernels { dim: 128, names: ["attention_128", "attention_128_general"], tilings: [D128, G128] },
    Kernels { dim: 256, names: ["attention_256", "attention_256_general"], tilings: [D256, G256] },
];
const D64: Tiling = Tiling { rows16: 2, dim16: 4, keys16: 4 };
const G64: Tiling = Tiling { keys16: 2, ..D64 };
const D80: Tiling = Tiling { rows16: 2, dim16: 5, keys16: 4 };
const G80: Tiling = Tiling { keys16: 2, ..D80 };
const D96: Tiling = Tiling { rows16: 2, dim16: 6, keys16: 4 };
const G96: Tiling = Tiling { keys16: 2, ..D96 };
const D128: Tiling = Tiling { rows16: 2, dim16: 8, keys16: 4 };
const G128: Tiling = Tiling { keys16: 2, ..D128 };
const D256: Tiling = Tiling { rows16: 1, dim16: 16, keys16: 2 };
const G256: Tiling = D256;

/// # Safety
/// As [`forward`].
#[inline(always)]
unsafe fn bounded<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const KEYS16: usize,
    const HELD: bool,
    const GENERAL: bool,
    const MIN_BLOCKS: u32,
>(
    p: Params,
) {
    thread::launch_bounds::<128, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { forward::<T, ROWS16, DIM16, KEYS16, HELD, GENERAL>(p) }
}

entry! {
    attention_64<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D64.rows16 }, { D64.dim16 }, { D64.keys16 }, true, false, 2>(p);
    attention_64_general<T: [f16, bf16]>(p: Params)
        => bounded::<T, { G64.rows16 }, { G64.dim16 }, { G64.keys16 }, true, true, 2>(p);
    attention_80<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D80.rows16 }, { D80.dim16 }, { D80.keys16 }, false, false, 2>(p);
    attention_80_general<T: [f16, bf16]>(p: Params)
        => bounded::<T, { G80.rows16 }, { G80.dim16 }, { G80.keys16 }, false, true, 2>(p);
    attention_96<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D96.rows16 }, { D96.dim16 }, { D96.keys16 }, false, false, 2>(p);
    attention_96_general<T: [f16, bf16]>(p: Params)
        => bounded::<T, { G96.rows16 }, { G96.dim16 }, { G96.keys16 }, false, true, 2>(p);
    attention_128<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D128.rows16 }, { D128.dim16 }, { D128.keys16 }, false, false, 2>(p);
    attention_128_general<T: [f16, bf16]>(p: Params)
        => bounded::<T, { G128.rows16 }, { G128.dim16 }, { G128.keys16 }, false, true, 2>(p);
    attention_256<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D256.rows16 }, { D256.dim16 }, { D256.keys16 }, false, false, 2>(p);
    attention_256_general<T: [f16, bf16]>(p: Params)
        => bounded::<T, { G256.rows16 }, { G256.dim16 }, { G256.keys16 }, false, true, 2>(p)
}
