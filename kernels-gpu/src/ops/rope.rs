//! Rotary position embedding (RoPE) of queries and keys in one launch. A pair of columns `(a, b)` becomes
//! `(a cos - b sin, a sin + b cos)`.
//!
//! The suffixes of kernel names have these meanings. The kernels of the first list read angles from tables,
//! and rotate either all columns of a head or none:
//!
//! - `_d64_warp1` and `_d128_warp1`: heads of 64 or 128 columns.
//! - `_qk_warp1`: heads that have neither 64 nor 128 columns, or whose angles differ between heads. These
//!   kernels rotate interleaved pairs (adjacent columns).
//!
//! The kernels of the second list serve all other cases, such as angles that the kernel computes, or a
//! rotation of only some columns:
//!
//! - `_warp1`: heads of up to 128 columns, with vec4 accesses (four columns at a time).
//! - `_block`: longer heads, with vec4 accesses.
//! - `_any`: tensors that do not allow vec4 accesses.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, Scalar, Vectorized};

use crate::heads::block::head_rows;
use crate::heads::norm::AsItIs;
#[cfg(not(target_arch = "nvptx64"))]
use crate::heads::params::REDUCE_BYTES;
use crate::heads::params::{HeadParams, HeadsOperand, Rotary};
use crate::heads::rope_only::rotated_rows;
use crate::heads::warp::head_lanes;
use crate::heads::warp_halves::head_halves;

/// # Safety
/// The requirements of [`head_lanes`] apply.
#[inline(always)]
unsafe fn lanes<T: Elem, const TILES: usize, const TOGETHER: usize>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<128, 7>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel.
    unsafe { head_lanes::<T, AsItIs, TILES, TOGETHER>(q, k, rotary, p) }
}

/// # Safety
/// The requirements of [`head_halves`] apply.
#[inline(always)]
unsafe fn halves<T: Elem, const DIM: u32, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel.
    unsafe { head_halves::<T, AsItIs, DIM, 4>(q, k, rotary, p) }
}

/// # Safety
/// The requirements of [`rotated_rows`] apply.
#[inline(always)]
unsafe fn rotated<T: Elem>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams) {
    thread::launch_bounds::<1024, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel.
    unsafe { rotated_rows::<T>(q, k, rotary, p) }
}

/// # Safety
/// The requirements of [`head_rows`] apply.
#[inline(always)]
unsafe fn rows<T: Elem, A: Access, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel.
    unsafe { head_rows::<T, AsItIs, A>(q, k, rotary, p) }
}

entry! {
    rope_d64_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => halves::<T, 64, { if size_of::<T>() == 4 { 3 } else { 4 } }>(q, k, rotary, p);
    rope_d128_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => halves::<T, 128, { if size_of::<T>() == 4 { 3 } else { 4 } }>(q, k, rotary, p);
    rope_qk_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rotated::<T>(q, k, rotary, p);
    rope_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => lanes::<T, 1, 4>(q, k, rotary, p);
    @shared(|block| p.staged_bytes::<T>(block) + REDUCE_BYTES)
    rope_block<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Vectorized, 3>(q, k, rotary, p);
    @shared(|block| p.staged_bytes::<T>(block) + REDUCE_BYTES)
    rope_any<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Scalar, 1>(q, k, rotary, p)
}
