//! Entry points of the kernels that compute attention, `out = softmax(scale * q kᵀ) v`. The module
//! [`mma`](crate::attention::mma) contains the code of these kernels.
//!
//! The suffixes `_d64` to `_d256` state the largest head dimension of a kernel. Only the `_general` kernels
//! support masks, a softcap, a scale that is not positive, and rows that are not aligned to 16 bytes.
// The tensor-core instructions of these kernels need sm_80.
#![cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]

use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use crate::attention::mma::forward::forward;
use crate::attention::mma::params::{AttentionParams, SHARED_BYTES_EVERYWHERE};
use crate::attention::mma::single_buffer::ping_pong;
use crate::attention::mma::tiling::Tiling;

/// Tile sizes of the kernels. `D<dim>` is for a specialized kernel, `S<dim>` for a specialized kernel with
/// small tiles, and `G<dim>` for a general kernel (which supports masks and softcap). `<dim>` is the largest
/// head dimension of the kernel. A `G<dim>` kernel computes smaller tiles of scores, because a larger tile
/// would need more registers than a thread has.
pub mod tiles {
    use super::{SHARED_BYTES_EVERYWHERE, Tiling};

    /// Tile sizes.
    pub const D64: Tiling = Tiling { warps: 4, rows16: 2, dim16: 4, cols16: 4, buffers: 2 };
    /// Tile sizes.
    pub const G64: Tiling = Tiling { cols16: 2, ..D64 };
    /// Tile sizes.
    pub const D80: Tiling = Tiling { dim16: 5, ..D64 };
    /// Tile sizes.
    pub const G80: Tiling = Tiling { cols16: 2, ..D80 };
    /// Tile sizes.
    pub const D96: Tiling = Tiling { dim16: 6, ..D64 };
    /// Tile sizes.
    pub const G96: Tiling = Tiling { cols16: 2, ..D96 };
    /// Tile sizes.
    pub const D128: Tiling = Tiling { dim16: 8, cols16: 4, buffers: 1, ..D64 };
    /// Tile sizes.
    pub const G128: Tiling = Tiling { rows16: 1, cols16: 2, buffers: 2, ..D128 };
    /// Tile sizes.
    pub const D256: Tiling = Tiling { warps: 8, rows16: 1, dim16: 16, cols16: 8, buffers: 1 };
    /// Tile sizes.
    pub const S256: Tiling = Tiling { cols16: 4, ..D256 };
    /// Tile sizes.
    pub const G256: Tiling = Tiling { warps: 4, cols16: 2, buffers: 2, ..D256 };

    // For each head dimension, the general kernel exists in only one tile size. The shared memory of this
    // tile size must therefore fit on every GPU from sm_80 on.
    const _: () = {
        let general = [G64, G80, G96, G128, G256];
        let mut at = 0;
        while at < general.len() {
            assert!(general[at].shared_bytes() <= SHARED_BYTES_EVERYWHERE);
            at += 1;
        }
    };
}
use tiles::{D64, D80, D96, D128, D256, G64, G80, G96, G128, G256, S256};

/// # Safety
/// The host checked that the parameters `p` are valid. The launch has as many bytes of shared memory as the
/// function `Tiling::shared_bytes` returns.
#[inline(always)]
unsafe fn bounded<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const KEYS16: usize,
    const WARPS: u32,
    const Q_IN_REGISTERS: bool,
    const GENERAL: bool,
>(
    p: AttentionParams,
) {
    // These launch bounds let ptxas use as many registers per thread as permit eight warps on an SM. With
    // bounds for more warps, the kernel would have too few registers.
    thread::launch_bounds::<128, 2>();
    // SAFETY: the kernel accesses the tensors in `p`, which the host checked. The launch has as many bytes of
    // shared memory as the function `Tiling::shared_bytes` returns.
    unsafe { forward::<T, ROWS16, DIM16, KEYS16, WARPS, Q_IN_REGISTERS, GENERAL>(p) }
}

/// # Safety
/// The host checked that the parameters `p` are valid. The launch has as many bytes of shared memory as the
/// function `Tiling::shared_bytes` returns.
#[inline(always)]
unsafe fn bounded_ping_pong<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const KEYS16: usize,
    const WARPS: u32,
>(
    p: AttentionParams,
) {
    // These launch bounds let ptxas use as many registers per thread as permit eight warps on an SM.
    if WARPS == 8 {
        thread::launch_bounds::<256, 1>();
    } else {
        thread::launch_bounds::<128, 2>();
    }
    // SAFETY: the kernel accesses the tensors in `p`, which the host checked. The launch has as many bytes of
    // shared memory as the function `Tiling::shared_bytes` returns.
    unsafe { ping_pong::<T, ROWS16, DIM16, KEYS16, WARPS>(p) }
}

entry! {
    @shared(|_block| tiles::D64.shared_bytes())
    attention_d64_smem<T: [f16, bf16]>(p: AttentionParams) => bounded::<
        T,
        { D64.rows16 },
        { D64.dim16 },
        { D64.cols16 },
        { D64.warps },
        true,
        false,
    >(p);
    @shared(|_block| tiles::G64.shared_bytes())
    attention_d64_general_smem<T: [f16, bf16]>(p: AttentionParams) => bounded::<
        T,
        { G64.rows16 },
        { G64.dim16 },
        { G64.cols16 },
        { G64.warps },
        true,
        true,
    >(p);
    @shared(|_block| tiles::D80.shared_bytes())
    attention_d80_smem<T: [f16, bf16]>(p: AttentionParams) => bounded::<
        T,
        { D80.rows16 },
        { D80.dim16 },
        { D80.cols16 },
        { D80.warps },
        false,
        false,
    >(p);
    @shared(|_block| tiles::G80.shared_bytes())
    attention_d80_general_smem<T: [f16, bf16]>(p: AttentionParams) => bounded::<
        T,
        { G80.rows16 },
        { G80.dim16 },
        { G80.cols16 },
        { G80.warps },
        false,
        true,
    >(p);
    @shared(|_block| tiles::D96.shared_bytes())
    attention_d96_smem<T: [f16, bf16]>(p: AttentionParams) => bounded::<
        T,
        { D96.rows16 },
        { D96.dim16 },
        { D96.cols16 },
        { D96.warps },
        false,
        false,
    >(p);
    @shared(|_block| tiles::G96.shared_bytes())
    attention_d96_general_smem<T: [f16, bf16]>(p: AttentionParams) => bounded::<
        T,
        { G96.rows16 },
        { G96.dim16 },
        { G96.cols16 },
        { G96.warps },
        false,
        true,
    >(p);
    @shared(|_block| tiles::D128.shared_bytes())
    attention_d128_smem<T: [f16, bf16]>(p: AttentionParams) => bounded_ping_pong::<
        T,
        { D128.rows16 },
        { D128.dim16 },
        { D128.cols16 },
        { D128.warps },
    >(p);
    @shared(|_block| tiles::G128.shared_bytes())
    attention_d128_general_smem<T: [f16, bf16]>(p: AttentionParams) => bounded::<
        T,
        { G128.rows16 },
        { G128.dim16 },
        { G128.cols16 },
        { G128.warps },
        false,
        true,
    >(p);
    @shared(|_block| tiles::D256.shared_bytes())
    attention_d256_smem<T: [f16, bf16]>(p: AttentionParams) => bounded_ping_pong::<
        T,
        { D256.rows16 },
        { D256.dim16 },
        { D256.cols16 },
        { D256.warps },
    >(p);
    @shared(|_block| tiles::S256.shared_bytes())
    attention_d256_small_smem<T: [f16, bf16]>(p: AttentionParams) => bounded_ping_pong::<
        T,
        { S256.rows16 },
        { S256.dim16 },
        { S256.cols16 },
        { S256.warps },
    >(p);
    @shared(|_block| tiles::G256.shared_bytes())
    attention_d256_general_smem<T: [f16, bf16]>(p: AttentionParams) => bounded::<
        T,
        { G256.rows16 },
        { G256.dim16 },
        { G256.cols16 },
        { G256.warps },
        false,
        true,
    >(p)
}
