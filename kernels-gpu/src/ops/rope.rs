//! Rotary position embedding of heads: `y = x cos + rotated(x) sin`, of queries and keys in one launch.
//!
//! `_halves` for heads of 64 or 128 columns and `_turned` for pairs of neighbours in longer ones or with
//! angles of each head: both for rotations of all columns by tables. `_lanes` for heads of up to 128 columns
//! that can be read in quads, `_rows` for all that can, `_any` for the rest.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, Scalar, Vec4};

use crate::heads::block::head_rows;
use crate::heads::norm::AsItIs;
use crate::heads::params::{Params, Rotary, Side};
use crate::heads::rope_only::turned_rows;
use crate::heads::warp::head_lanes;
use crate::heads::warp_halves::head_halves;

/// # Safety
/// As [`head_lanes`].
#[inline(always)]
unsafe fn lanes<T: Elem, const TILES: usize, const TOGETHER: usize>(
    q: Side,
    k: Side,
    rotary: Rotary,
    p: Params,
) {
    thread::launch_bounds::<128, 7>();
    // SAFETY: as the caller promises.
    unsafe { head_lanes::<T, AsItIs, TILES, TOGETHER>(q, k, rotary, p) }
}

/// # Safety
/// As [`head_halves`].
#[inline(always)]
unsafe fn halves<T: Elem, const DIM: u32, const MIN_BLOCKS: u32>(
    q: Side,
    k: Side,
    rotary: Rotary,
    p: Params,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { head_halves::<T, AsItIs, DIM, 4>(q, k, rotary, p) }
}

/// # Safety
/// As [`turned_rows`].
#[inline(always)]
unsafe fn turned<T: Elem>(q: Side, k: Side, rotary: Rotary, p: Params) {
    thread::launch_bounds::<1024, 1>();
    // SAFETY: as the caller promises.
    unsafe { turned_rows::<T>(q, k, rotary, p) }
}

/// # Safety
/// As [`head_rows`].
#[inline(always)]
unsafe fn rows<T: Elem, A: Access, const MIN_BLOCKS: u32>(q: Side, k: Side, rotary: Rotary, p: Params) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { head_rows::<T, AsItIs, A>(q, k, rotary, p) }
}

entry! {
    rope_halves64<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => halves::<T, 64, { if size_of::<T>() == 4 { 3 } else { 4 } }>(q, k, rotary, p);
    rope_halves128<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => halves::<T, 128, { if size_of::<T>() == 4 { 3 } else { 4 } }>(q, k, rotary, p);
    rope_turned<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => turned::<T>(q, k, rotary, p);
    rope_lanes<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => lanes::<T, 1, 4>(q, k, rotary, p);
    rope_rows<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, Vec4, 3>(q, k, rotary, p);
    rope_any<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, Scalar, 1>(q, k, rotary, p)
}
