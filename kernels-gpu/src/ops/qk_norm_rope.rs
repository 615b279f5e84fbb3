//! Queries and keys: LayerNorm or RMSNorm, of each head or of all heads together, then rotary position
//! embedding, in one launch that reads and writes each of them once.
//!
//! `_halves` for heads of 64 or 128 columns and `_held<n>` for heads that are normalised together, of 512 n
//! columns or fewer: both for an RMSNorm and rotations of all columns; `_paired` for heads of 128 with angles
//! of their own. `_lanes` for heads of up to 128 columns that can be read in quads, `_lanes2` up to 256;
//! `_rows` for longer ones and for other heads that are normalised together; `_any` for what cannot be read
//! in quads.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, Scalar, Vec4};

use crate::heads::block::head_rows;
use crate::heads::block_registers::held_rows;
use crate::heads::norm::{HeadNorm, Layer};
use crate::heads::params::{Params, Rotary, Side};
use crate::heads::rms_norm::Rms;
use crate::heads::warp::head_lanes;
use crate::heads::warp_halves::head_halves;
use crate::heads::warp_own_angles::paired_heads;

/// # Safety
/// As [`head_lanes`].
#[inline(always)]
unsafe fn lanes<T: Elem, N: HeadNorm, const TILES: usize, const TOGETHER: usize, const MIN_BLOCKS: u32>(
    q: Side,
    k: Side,
    rotary: Rotary,
    p: Params,
) {
    thread::launch_bounds::<128, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { head_lanes::<T, N, TILES, TOGETHER>(q, k, rotary, p) }
}

/// # Safety
/// As [`head_halves`].
#[inline(always)]
unsafe fn halves<T: Elem, const DIM: u32>(q: Side, k: Side, rotary: Rotary, p: Params) {
    thread::launch_bounds::<256, 4>();
    // SAFETY: as the caller promises.
    unsafe { head_halves::<T, Rms, DIM, 2>(q, k, rotary, p) }
}

/// # Safety
/// As [`paired_heads`].
#[inline(always)]
unsafe fn paired<T: Elem>(q: Side, k: Side, rotary: Rotary, p: Params) {
    thread::launch_bounds::<256, 4>();
    // SAFETY: as the caller promises.
    unsafe { paired_heads::<T, Rms>(q, k, rotary, p) }
}

/// # Safety
/// As [`held_rows`].
#[inline(always)]
unsafe fn held<T: Elem, const HELD: usize, const MIN_BLOCKS: u32>(
    q: Side,
    k: Side,
    rotary: Rotary,
    p: Params,
) {
    thread::launch_bounds::<128, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { held_rows::<T, HELD>(q, k, rotary, p) }
}

/// # Safety
/// As [`head_rows`].
#[inline(always)]
unsafe fn rows<T: Elem, N: HeadNorm, A: Access, const MIN_BLOCKS: u32>(
    q: Side,
    k: Side,
    rotary: Rotary,
    p: Params,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { head_rows::<T, N, A>(q, k, rotary, p) }
}

entry! {
    qk_norm_rope_halves64_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => halves::<T, 64>(q, k, rotary, p);
    qk_norm_rope_halves128_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => halves::<T, 128>(q, k, rotary, p);
    qk_norm_rope_paired_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => paired::<T>(q, k, rotary, p);
    qk_norm_rope_held4_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => held::<T, 4, { if size_of::<T>() == 4 { 6 } else { 8 } }>(q, k, rotary, p);
    qk_norm_rope_held10_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => held::<T, 10, { if size_of::<T>() == 4 { 3 } else { 5 } }>(q, k, rotary, p);
    qk_norm_rope_lanes_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => lanes::<T, Rms, 1, 4, { if size_of::<T>() == 4 { 5 } else { 6 } }>(q, k, rotary, p);
    qk_norm_rope_lanes2_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => lanes::<T, Rms, 2, 2, { if size_of::<T>() == 4 { 5 } else { 6 } }>(q, k, rotary, p);
    qk_norm_rope_rows_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, Rms, Vec4, 3>(q, k, rotary, p);
    qk_norm_rope_any_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, Rms, Scalar, 1>(q, k, rotary, p);
    qk_norm_rope_lanes_layer<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => lanes::<T, Layer, 1, 4, 5>(q, k, rotary, p);
    qk_norm_rope_rows_layer<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, Layer, Vec4, 3>(q, k, rotary, p);
    qk_norm_rope_any_layer<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, Layer, Scalar, 1>(q, k, rotary, p)
}
