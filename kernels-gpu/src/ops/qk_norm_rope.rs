//! Queries and keys: LayerNorm or RMSNorm, of each head or of all heads together, then rotary position
//! embedding, in one launch that reads and writes each of them once.
//!
//! `_halves` for heads of 64 or 128 columns and `_tile<n>` for heads that are normalised together, of 512 n
//! columns or fewer: both for an RMSNorm and rotations of all columns; `_paired` for heads of 128 with angles
//! of their own. `_lanes` for heads of up to 128 columns that can be read in quads, `_lanes2` up to 256;
//! `_rows` for longer ones and for other heads that are normalised together; `_any` for what cannot be read
//! in quads.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, Scalar, Vectorized};

use crate::heads::block::head_rows;
use crate::heads::block_registers::register_rows;
use crate::heads::norm::{HeadNorm, Layer};
use crate::heads::params::{HeadParams, HeadsOperand, Rotary};
use crate::heads::rms_norm::Rms;
use crate::heads::warp::head_lanes;
use crate::heads::warp_halves::head_halves;
use crate::heads::warp_own_angles::paired_heads;

/// # Safety
/// As [`head_lanes`].
#[inline(always)]
unsafe fn lanes<T: Elem, N: HeadNorm, const TILES: usize, const TOGETHER: usize, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<128, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { head_lanes::<T, N, TILES, TOGETHER>(q, k, rotary, p) }
}

/// # Safety
/// As [`head_halves`].
#[inline(always)]
unsafe fn halves<T: Elem, const DIM: u32>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams) {
    thread::launch_bounds::<256, 4>();
    // SAFETY: as the caller promises.
    unsafe { head_halves::<T, Rms, DIM, 2>(q, k, rotary, p) }
}

/// # Safety
/// As [`paired_heads`].
#[inline(always)]
unsafe fn paired<T: Elem>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams) {
    thread::launch_bounds::<256, 4>();
    // SAFETY: as the caller promises.
    unsafe { paired_heads::<T, Rms>(q, k, rotary, p) }
}

/// # Safety
/// As [`register_rows`].
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<128, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { register_rows::<T, IN_REGISTERS>(q, k, rotary, p) }
}

/// # Safety
/// As [`head_rows`].
#[inline(always)]
unsafe fn rows<T: Elem, N: HeadNorm, A: Access, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { head_rows::<T, N, A>(q, k, rotary, p) }
}

entry! {
    qk_norm_rope_rms_d64_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => halves::<T, 64>(q, k, rotary, p);
    qk_norm_rope_rms_d128_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => halves::<T, 128>(q, k, rotary, p);
    qk_norm_rope_rms_qk_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => paired::<T>(q, k, rotary, p);
    qk_norm_rope_rms_block4<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => in_registers::<T, 4, { if size_of::<T>() == 4 { 6 } else { 8 } }>(q, k, rotary, p);
    qk_norm_rope_rms_block10<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => in_registers::<T, 10, { if size_of::<T>() == 4 { 3 } else { 5 } }>(q, k, rotary, p);
    qk_norm_rope_rms_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => lanes::<T, Rms, 1, 4, { if size_of::<T>() == 4 { 5 } else { 6 } }>(q, k, rotary, p);
    qk_norm_rope_rms_warp2<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => lanes::<T, Rms, 2, 2, { if size_of::<T>() == 4 { 5 } else { 6 } }>(q, k, rotary, p);
    qk_norm_rope_rms_smem<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Rms, Vectorized, 3>(q, k, rotary, p);
    qk_norm_rope_rms_any<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Rms, Scalar, 1>(q, k, rotary, p);
    qk_norm_rope_layer_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => lanes::<T, Layer, 1, 4, 5>(q, k, rotary, p);
    qk_norm_rope_layer_smem<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Layer, Vectorized, 3>(q, k, rotary, p);
    qk_norm_rope_layer_any<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Layer, Scalar, 1>(q, k, rotary, p)
}
