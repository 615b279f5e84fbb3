//! LayerNorm or RMSNorm of queries and keys, followed by RoPE whose positions choose the rows of the tables,
//! in one launch. The formula is that of [`qk_norm_rope`](super::qk_norm_rope), whose module also explains
//! the suffixes of the kernel names.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, Scalar, Vectorized};

use crate::heads::block::{HeadRow, head_rows};
use crate::heads::norm::{HeadNorm, Layer};
#[cfg(not(target_arch = "nvptx64"))]
use crate::heads::params::REDUCE_BYTES;
use crate::heads::params::{HeadParams, HeadsOperand, PositionedRotary};
use crate::heads::partition::WarpTask;
use crate::heads::rms_norm::Rms;
use crate::heads::warp::head_lanes;
use crate::heads::warp_halves::head_halves;

/// # Safety
/// The requirements of [`head_lanes`] apply.
#[inline(always)]
unsafe fn lanes<T: Elem, N: HeadNorm, const TILES: usize, const TOGETHER: usize, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: PositionedRotary,
    p: HeadParams,
) {
    thread::launch_bounds::<128, MIN_BLOCKS>();
    let Some(task) = WarpTask::of_warp(&p) else { return };
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel. The
    // positions have an entry for each token that RoPE rotates.
    unsafe { head_lanes::<T, N, TILES, TOGETHER>(q, k, rotary.of_token::<T>(task.token, true), p) }
}

/// # Safety
/// The requirements of [`head_halves`] apply.
#[inline(always)]
unsafe fn halves<T: Elem, const DIM: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: PositionedRotary,
    p: HeadParams,
) {
    thread::launch_bounds::<256, 4>();
    let Some(task) = WarpTask::of_grid(&p) else { return };
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel. The
    // positions have an entry for each token that RoPE rotates.
    unsafe { head_halves::<T, Rms, DIM, 2>(q, k, rotary.of_token::<T>(task.token, true), p) }
}

/// # Safety
/// The requirements of [`head_rows`] apply.
#[inline(always)]
unsafe fn rows<T: Elem, N: HeadNorm, A: Access, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: PositionedRotary,
    p: HeadParams,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    let number = Team::of_block().row;
    let row = HeadRow::<T>::of(q, k, &p, number as u32);
    let exists = number < u64::from(p.rows) * u64::from(p.warp_tasks[0] + p.warp_tasks[1]);
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel. The
    // positions have an entry for each token that RoPE rotates.
    unsafe { head_rows::<T, N, A>(q, k, rotary.of_token::<T>(row.token, exists), p) }
}

entry! {
    qk_norm_rope_positions_rms_d64_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => halves::<T, 64>(q, k, rotary, p);
    qk_norm_rope_positions_rms_d128_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => halves::<T, 128>(q, k, rotary, p);
    qk_norm_rope_positions_rms_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => lanes::<T, Rms, 1, 4, { if size_of::<T>() == 4 { 5 } else { 6 } }>(q, k, rotary, p);
    qk_norm_rope_positions_rms_warp2<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => lanes::<T, Rms, 2, 2, { if size_of::<T>() == 4 { 5 } else { 6 } }>(q, k, rotary, p);
    @shared(|block| p.staged_bytes::<T>(block) + REDUCE_BYTES)
    qk_norm_rope_positions_rms_smem<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => rows::<T, Rms, Vectorized, 3>(q, k, rotary, p);
    @shared(|block| p.staged_bytes::<T>(block) + REDUCE_BYTES)
    qk_norm_rope_positions_rms_any<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => rows::<T, Rms, Scalar, 1>(q, k, rotary, p);
    qk_norm_rope_positions_layer_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => lanes::<T, Layer, 1, 4, 5>(q, k, rotary, p);
    @shared(|block| p.staged_bytes::<T>(block) + REDUCE_BYTES)
    qk_norm_rope_positions_layer_smem<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => rows::<T, Layer, Vectorized, 3>(q, k, rotary, p);
    @shared(|block| p.staged_bytes::<T>(block) + REDUCE_BYTES)
    qk_norm_rope_positions_layer_any<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => rows::<T, Layer, Scalar, 1>(q, k, rotary, p)
}
