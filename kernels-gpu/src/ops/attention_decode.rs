//! Entry points of the kernels for attention of few queries to many keys (split-KV decoding). The module
//! [`decode`](crate::attention::decode) contains the code of these kernels.
//!
//! The keys are divided into splits. The kernels with the suffixes `_d64` to `_d256` compute a partial result
//! for each split. The number in the suffix is the largest head dimension of the kernel. Then the `_combine`
//! kernel combines the partial results of each query.
// The tensor-core instructions of these kernels need sm_80.
#![cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]

use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
use crate::attention::decode::combine::SHARED_BYTES;
use crate::attention::decode::combine::{COMBINERS, combine};
use crate::attention::decode::params::DecodeParams;
#[cfg(not(target_arch = "nvptx64"))]
use crate::attention::decode::params::shared_bytes;
use crate::attention::decode::split::decode;
use crate::attention::mma::params::WARPS;

/// # Safety
/// The host checked that the parameters `p` are valid. The launch has as many bytes of shared memory as the
/// function `shared_bytes` returns.
#[inline(always)]
unsafe fn bounded<T: MatrixElem, const DIM16: usize, const MIN_BLOCKS: u32>(p: DecodeParams) {
    thread::launch_bounds::<{ WARPS * warp::SIZE }, MIN_BLOCKS>();
    // SAFETY: the kernel accesses the tensors in `p`, which the host checked. The launch has as many bytes of
    // shared memory as the function `shared_bytes` returns.
    unsafe { decode::<T, DIM16>(p) }
}

/// # Safety
/// The launch that computes the partial results is finished, and had the same argument `p`. A block has
/// `COMBINERS` warps.
#[inline(always)]
unsafe fn bounded_combine<T: MatrixElem>(p: DecodeParams) {
    thread::launch_bounds::<{ COMBINERS * warp::SIZE }, 2>();
    // SAFETY: the kernel accesses the tensors in `p`, which the host checked. The host launches this kernel
    // after the kernel that computes the partial results, with blocks of `COMBINERS` warps.
    unsafe { combine::<T>(p) }
}

entry! {
    @shared(|_block| shared_bytes(4))
    attention_decode_d64_smem<T: [f16, bf16]>(p: DecodeParams) => bounded::<T, 4, 5>(p);
    @shared(|_block| shared_bytes(8))
    attention_decode_d128_smem<T: [f16, bf16]>(p: DecodeParams) => bounded::<T, 8, 3>(p);
    @shared(|_block| shared_bytes(16))
    attention_decode_d256_smem<T: [f16, bf16]>(p: DecodeParams) => bounded::<T, 16, 2>(p);
    @shared(|_block| SHARED_BYTES)
    attention_decode_combine_block<T: [f16, bf16]>(p: DecodeParams) => bounded_combine::<T>(p)
}
