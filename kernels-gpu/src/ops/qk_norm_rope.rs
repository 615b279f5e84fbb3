//! Queries and keys: LayerNorm or RMSNorm, of each head or of all heads together, then rotary position embedding, in one
//! launch that reads and writes each of them once.
//!
//! `_lanes` for heads of up to 128 columns that can be read in quads, `_lanes2` up to 256; `_rows` for longer ones and for
//! heads that are normalised together; `_any` for what cannot be read in quads.
use cuda_std::prelude::*;
use cuda_std::quad::{QUADS, SCALAR};

use crate::head_lanes::{Params, Side, head_lanes};
use crate::head_norm::{HeadNorm, Layer, Rms};
use crate::head_rows::head_rows;
use crate::rotary::Rotary;

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
/// As [`head_rows`].
#[inline(always)]
unsafe fn rows<T: Elem, N: HeadNorm, const ACCESS: u32, const MIN_BLOCKS: u32>(
    q: Side,
    k: Side,
    rotary: Rotary,
    p: Params,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { head_rows::<T, N, ACCESS>(q, k, rotary, p) }
}

entry! {
    qk_norm_rope_lanes_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => lanes::<T, Rms, 1, 4, { if size_of::<T>() == 4 { 5 } else { 6 } }>(q, k, rotary, p);
    qk_norm_rope_lanes2_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => lanes::<T, Rms, 2, 2, 6>(q, k, rotary, p);
    qk_norm_rope_rows_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, Rms, QUADS, 3>(q, k, rotary, p);
    qk_norm_rope_any_rms<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, Rms, SCALAR, 1>(q, k, rotary, p);
    qk_norm_rope_lanes_layer<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => lanes::<T, Layer, 1, 4, 5>(q, k, rotary, p);
    qk_norm_rope_rows_layer<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, Layer, QUADS, 3>(q, k, rotary, p);
    qk_norm_rope_any_layer<T: [f32, f16, bf16]>(q: Side, k: Side, rotary: Rotary, p: Params)
        => rows::<T, Layer, SCALAR, 1>(q, k, rotary, p)
}
