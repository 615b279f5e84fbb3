//! `softmax(scale q kT) v`: see [`attention`](crate::attention).
//!
//! `_64` to `_256`: for heads of up to so many columns. `_general` has mask, softcap, any scale and any alignment.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use crate::attention::forward::forward;
use crate::attention::{Params, Tiling};

/// The tiles of each kernel.
pub const TILINGS: [(&str, &str, Tiling); 5] = [
    ("attention_64", "attention_64_general", D64),
    ("attention_80", "attention_80_general", D80),
    ("attention_96", "attention_96_general", D96),
    ("attention_128", "attention_128_general", D128),
    ("attention_256", "attention_256_general", D256),
];
const D64: Tiling = Tiling { rows16: 2, dim16: 4, keys16: 4 };
const D80: Tiling = Tiling { rows16: 2, dim16: 5, keys16: 4 };
const D96: Tiling = Tiling { rows16: 2, dim16: 6, keys16: 4 };
const D128: Tiling = Tiling { rows16: 2, dim16: 8, keys16: 4 };
const D256: Tiling = Tiling { rows16: 1, dim16: 16, keys16: 2 };

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

#[cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]
entry! {
    attention_64<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D64.rows16 }, { D64.dim16 }, { D64.keys16 }, true, false, 3>(p);
    attention_64_general<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D64.rows16 }, { D64.dim16 }, { D64.keys16 }, true, true, 2>(p);
    attention_80<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D80.rows16 }, { D80.dim16 }, { D80.keys16 }, true, false, 2>(p);
    attention_80_general<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D80.rows16 }, { D80.dim16 }, { D80.keys16 }, false, true, 2>(p);
    attention_96<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D96.rows16 }, { D96.dim16 }, { D96.keys16 }, false, false, 2>(p);
    attention_96_general<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D96.rows16 }, { D96.dim16 }, { D96.keys16 }, false, true, 2>(p);
    attention_128<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D128.rows16 }, { D128.dim16 }, { D128.keys16 }, false, false, 2>(p);
    attention_128_general<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D128.rows16 }, { D128.dim16 }, { D128.keys16 }, false, true, 2>(p);
    attention_256<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D256.rows16 }, { D256.dim16 }, { D256.keys16 }, false, false, 2>(p);
    attention_256_general<T: [f16, bf16]>(p: Params)
        => bounded::<T, { D256.rows16 }, { D256.dim16 }, { D256.keys16 }, false, true, 2>(p)
}
