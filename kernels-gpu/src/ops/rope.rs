//! Rotary position embedding of heads: `y = x cos + rotated(x) sin`, of queries and keys in one launch.
//!
//! `_halves` for heads of 64 or 128 columns and `_turned` for pairs of neighbours in longer ones or with
//! angles of each head: both for rotations of all columns by tables. `_lanes` for heads of up to 128 columns
//! that can be read in quads, `_rows` for all that can, `_any` for the rest.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, Scalar, Vectorized};

use crate::heads::block::head_rows;
use crate::heads::norm::AsItIs;
use crate::heads::params::{HeadParams, HeadsOperand, Rotary};
use crate::heads::rope_only::rotated_rows;
use crate::heads::warp::head_lanes;
use crate::heads::warp_halves::head_halves;

/// # Safety
/// As [`head_lanes`].
#[inline(always)]
unsafe fn lanes<T: Elem, const TILES: usize, const TOGETHER: usize>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<128, 7>();
    // SAFETY: as the caller promises.
    unsafe { head_lanes::<T, AsItIs, TILES, TOGETHER>(q, k, rotary, p) }
}

/// # Safety
/// As [`head_halves`].
#[inline(always)]
unsafe fn halves<T: Elem, const DIM: u32, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { head_halves::<T, AsItIs, DIM, 4>(q, k, rotary, p) }
}

/// # Safety
/// As [`rotated_rows`].
#[inline(always)]
unsafe fn rotated<T: Elem>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams) {
    thread::launch_bounds::<1024, 1>();
    // SAFETY: as the caller promises.
    unsafe { rotated_rows::<T>(q, k, rotary, p) }
}

/// # Safety
/// As [`head_rows`].
#[inline(always)]
unsafe fn rows<T: Elem, A: Access, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
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
    rope_block<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Vectorized, 3>(q, k, rotary, p);
    rope_any<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Scalar, 1>(q, k, rotary, p)
}
