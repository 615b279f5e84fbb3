//! Entry points of the kernels that compute the gradients `dq`, `dk` and `dv` of attention. The module
//! [`backward`](crate::attention::backward) contains the code of these kernels and documents the formulas.
//!
//! The `_delta` kernel runs first, and computes the sum of `dO * O` over the columns, for each query. Then a
//! `_query` kernel computes `dq`, and a `_key` kernel computes `dk` and `dv`. The suffixes `_d64` to `_d256`
//! state the largest head dimension of a kernel. In the `_d256` kernels, a thread has registers for the
//! accumulator of only one gradient. Therefore, `_key_d256` computes only `dk`, and `_value_d256` computes
//! `dv`.
//!
//! Only the `_general` kernels support masks, a softcap, a scale that is not positive, and rows that are not
//! aligned to 16 bytes. The `_general` kernels have smaller tiles, because these features need additional
//! registers.
// The tensor-core instructions of these kernels need sm_80.
#![cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]

use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use crate::attention::backward::delta::delta;
use crate::attention::backward::gradients::gradients;
use crate::attention::backward::params::{BackwardParams, DELTA_THREADS, shared_bytes};
use crate::attention::mma::params::SHARED_BYTES_EVERYWHERE;
use crate::attention::mma::tiling::Tiling;

/// Tile sizes of the kernels. `Q<dim>` is for a specialized kernel that computes `dq`, and `K<dim>` for a
/// specialized kernel that computes `dk` and `dv`. `D256` is for all specialized kernels of head dimension
/// 256. `G<dim>` is for the general kernels (which support masks and softcap). `<dim>` is the largest head
/// dimension of the kernel.
pub mod tiles {
    use super::{SHARED_BYTES_EVERYWHERE, Tiling, shared_bytes};

    /// Tile sizes.
    pub const Q64: Tiling = Tiling { warps: 4, rows16: 2, dim16: 4, cols16: 4, buffers: 2 };
    /// Tile sizes.
    pub const K64: Tiling = Tiling { cols16: 2, ..Q64 };
    /// Tile sizes.
    pub const G64: Tiling = Tiling { rows16: 1, ..Q64 };
    /// Tile sizes.
    pub const Q128: Tiling = Tiling { dim16: 8, cols16: 2, ..Q64 };
    /// Tile sizes.
    pub const K128: Tiling = Tiling { rows16: 1, cols16: 4, ..Q128 };
    /// Tile sizes.
    pub const G128: Tiling = Tiling { rows16: 1, ..Q128 };
    /// Tile sizes.
    pub const D256: Tiling = Tiling { warps: 8, rows16: 1, dim16: 16, ..Q128 };
    /// Tile sizes.
    pub const G256: Tiling = Tiling { warps: 2, cols16: 1, ..D256 };

    // For each head dimension, the general kernels exist in only one tile size. The shared memory of this
    // tile size must therefore fit on every GPU from sm_80 on.
    const _: () = {
        let general = [G64, G128, G256];
        let mut at = 0;
        while at < general.len() {
            assert!(shared_bytes(&general[at]) <= SHARED_BYTES_EVERYWHERE);
            at += 1;
        }
    };
}
use tiles::{D256, G64, G128, G256, K64, K128, Q64, Q128};

/// # Safety
/// The host checked that the parameters `p` are valid. The launch has as many bytes of shared memory as the
/// function `shared_bytes` returns.
#[inline(always)]
unsafe fn bounded<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const COLS16: usize,
    const WARPS: u32,
    const KEYS: bool,
    const FIRST: bool,
    const SECOND: bool,
    const GENERAL: bool,
>(
    p: BackwardParams,
) {
    // These launch bounds let ptxas use as many registers per thread as permit eight warps on an SM. With
    // bounds for more warps, the kernel would have too few registers.
    if WARPS == 8 {
        thread::launch_bounds::<256, 1>();
    } else {
        thread::launch_bounds::<128, 2>();
    }
    // SAFETY: the kernel accesses the tensors in `p`, which the host checked. The launch has as many bytes of
    // shared memory as the function `shared_bytes` returns.
    unsafe { gradients::<T, ROWS16, DIM16, COLS16, WARPS, KEYS, FIRST, SECOND, GENERAL>(p) }
}

/// # Safety
/// The host checked that the parameters `p` are valid. A block has `DELTA_THREADS` threads.
#[inline(always)]
unsafe fn bounded_delta<T: MatrixElem>(p: BackwardParams) {
    thread::launch_bounds::<DELTA_THREADS, 8>();
    // SAFETY: the kernel accesses the tensors in `p`, which the host checked. The host launches blocks of
    // `DELTA_THREADS` threads.
    unsafe { delta::<T>(p) }
}

entry! {
    attention_backward_delta_warp<T: [f16, bf16]>(p: BackwardParams) => bounded_delta::<T>(p);
    @shared(|_block| shared_bytes(&tiles::Q64))
    attention_backward_query_d64_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { Q64.rows16 }, { Q64.dim16 }, { Q64.cols16 }, { Q64.warps }, false, true, false, false>(p);
    @shared(|_block| shared_bytes(&tiles::G64))
    attention_backward_query_d64_general_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { G64.rows16 }, { G64.dim16 }, { G64.cols16 }, { G64.warps }, false, true, false, true>(p);
    @shared(|_block| shared_bytes(&tiles::K64))
    attention_backward_key_d64_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { K64.rows16 }, { K64.dim16 }, { K64.cols16 }, { K64.warps }, true, true, true, false>(p);
    @shared(|_block| shared_bytes(&tiles::G64))
    attention_backward_key_d64_general_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { G64.rows16 }, { G64.dim16 }, { G64.cols16 }, { G64.warps }, true, true, true, true>(p);
    @shared(|_block| shared_bytes(&tiles::Q128))
    attention_backward_query_d128_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { Q128.rows16 }, { Q128.dim16 }, { Q128.cols16 }, { Q128.warps }, false, true, false, false>(p);
    @shared(|_block| shared_bytes(&tiles::G128))
    attention_backward_query_d128_general_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { G128.rows16 }, { G128.dim16 }, { G128.cols16 }, { G128.warps }, false, true, false, true>(p);
    @shared(|_block| shared_bytes(&tiles::K128))
    attention_backward_key_d128_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { K128.rows16 }, { K128.dim16 }, { K128.cols16 }, { K128.warps }, true, true, true, false>(p);
    @shared(|_block| shared_bytes(&tiles::G128))
    attention_backward_key_d128_general_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { G128.rows16 }, { G128.dim16 }, { G128.cols16 }, { G128.warps }, true, true, true, true>(p);
    @shared(|_block| shared_bytes(&tiles::D256))
    attention_backward_query_d256_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { D256.rows16 }, { D256.dim16 }, { D256.cols16 }, { D256.warps }, false, true, false, false>(p);
    @shared(|_block| shared_bytes(&tiles::G256))
    attention_backward_query_d256_general_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { G256.rows16 }, { G256.dim16 }, { G256.cols16 }, { G256.warps }, false, true, false, true>(p);
    @shared(|_block| shared_bytes(&tiles::D256))
    attention_backward_key_d256_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { D256.rows16 }, { D256.dim16 }, { D256.cols16 }, { D256.warps }, true, true, false, false>(p);
    @shared(|_block| shared_bytes(&tiles::G256))
    attention_backward_key_d256_general_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { G256.rows16 }, { G256.dim16 }, { G256.cols16 }, { G256.warps }, true, true, false, true>(p);
    @shared(|_block| shared_bytes(&tiles::D256))
    attention_backward_value_d256_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { D256.rows16 }, { D256.dim16 }, { D256.cols16 }, { D256.warps }, true, false, true, false>(p);
    @shared(|_block| shared_bytes(&tiles::G256))
    attention_backward_value_d256_general_smem<T: [f16, bf16]>(p: BackwardParams)
        => bounded::<T, { G256.rows16 }, { G256.dim16 }, { G256.cols16 }, { G256.warps }, true, false, true, true>(p)
}
