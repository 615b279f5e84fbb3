//! Rotary position embedding of heads: `y = x cos + rotated(x) sin`, of queries and keys in one launch.
//!
//! `_lanes` for heads of up to 128 columns that can be read in quads, `_rows` for all that can, `_any` for the rest.
use cuda_std::prelude::*;
use cuda_std::quad::{QUADS, SCALAR};

use crate::head_lanes::{Params, Side, head_lanes};
use crate::head_norm::AsItIs;
use crate::head_rows::head_rows;
use crate::rotary::Rotary;

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
/// As [`head_rows`].
#[inline(always)]
unsafe fn rows<T: Elem, const ACCESS: u32, const MIN_BLOCKS: u32>(
    q: Side,
    k: Side,
    rotary: Rotary,
    p: Params,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { head_rows::<T, AsItIs, ACCESS>(q, k, rotary, p) }
}

entry! {
    rope_lanes<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => lanes::<T, 1, 4>(q, k, rotary, p);
    rope_rows<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, QUADS, 3>(q, k, rotary, p);
    rope_any<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, SCALAR, 1>(q, k, rotary, p)
}
