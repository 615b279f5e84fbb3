//! The gradients of attention: see [`backward`](crate::attention::backward).
//!
//! `_delta` comes first, then `_query` for `dq` and `_key` for `dk` and `dv`, for heads of up to 64, 128 and 256 columns. Of
//! 256 columns both sums do not fit the registers: `_key_256` gives `dk`, `_value_256` `dv`.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use crate::attention::WARPS;
use crate::attention::backward::{BackwardParams, delta, gradients};

/// Kernels of heads of up to `dim` columns.
pub struct Kernels {
    /// The most columns.
    pub dim: u32,
    /// For the gradients of queries.
    pub query: &'static str,
    /// For those of keys and values.
    pub key: &'static [&'static str],
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// The shortest heads first.
pub const KERNELS_BY_DIM: [Kernels; 3] = [
    Kernels {
        dim: 64,
        query: "attention_backward_query_64",
        key: &["attention_backward_key_64"],
        shared_bytes: crate::attention::backward::shared_bytes(4, 4),
    },
    Kernels {
        dim: 128,
        query: "attention_backward_query_128",
        key: &["attention_backward_key_128"],
        shared_bytes: crate::attention::backward::shared_bytes(8, 2),
    },
    Kernels {
        dim: 256,
        query: "attention_backward_query_256",
        key: &["attention_backward_key_256", "attention_backward_value_256"],
        shared_bytes: crate::attention::backward::shared_bytes(16, 1),
    },
];

/// # Safety
/// As [`gradients`].
#[inline(always)]
unsafe fn bounded<
    T: MatrixElem,
    const DIM16: usize,
    const COLS16: usize,
    const KEYS: bool,
    const FIRST: bool,
    const SECOND: bool,
>(
    p: BackwardParams,
) {
    thread::launch_bounds::<{ WARPS * warp::SIZE }, 2>();
    // SAFETY: as the caller promises.
    unsafe { gradients::<T, DIM16, COLS16, KEYS, FIRST, SECOND>(p) }
}

/// # Safety
/// As [`delta`].
#[inline(always)]
unsafe fn bounded_delta<T: MatrixElem>(p: BackwardParams) {
    thread::launch_bounds::<{ WARPS * warp::SIZE }, 8>();
    // SAFETY: as the caller promises.
    unsafe { delta::<T>(p) }
}

entry! {
    attention_backward_delta<T: [f16, bf16]>(p: BackwardParams) => bounded_delta::<T>(p);
    attention_backward_query_64<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, 4, 4, false, true, false>(p);
    attention_backward_key_64<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, 4, 4, true, true, true>(p);
    attention_backward_query_128<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, 8, 2, false, true, false>(p);
    attention_backward_key_128<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, 8, 2, true, true, true>(p);
    attention_backward_query_256<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, 16, 1, false, true, false>(p);
    attention_backward_key_256<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, 16, 1, true, true, false>(p);
    attention_backward_value_256<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, 16, 1, true, false, true>(p)
}
