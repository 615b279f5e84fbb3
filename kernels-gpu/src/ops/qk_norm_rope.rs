//! LayerNorm or RMSNorm of queries and keys, followed by rotary position embedding (RoPE), in one launch. The
//! norm is over each head or over all heads together. The launch reads and writes each tensor once.
//!
//! The suffixes of kernel names have these meanings. The kernels of the first list are only for RMSNorm. They
//! rotate either all columns of a head or none:
//!
//! - `_d64_warp1` and `_d128_warp1`: heads of 64 or 128 columns, each normalized separately.
//! - `_qk_warp1`: heads of 128 columns, each normalized separately. Each head has its own angles.
//! - `_block4` and `_block10`: rows of up to 4 or 10 tiles (512 columns each), which stay in registers. A row
//!   is one long head, or all heads normalized together. These kernels rotate interleaved pairs of columns.
//!
//! The kernels of the second list serve all other cases, such as LayerNorm or a rotation of only some
//! columns:
//!
//! - `_warp1` and `_warp2`: heads of up to 128 or 256 columns, each normalized separately, with vec4 accesses
//!   (four columns at a time).
//! - `_smem`: longer heads, and heads that are normalized together but do not fit `_block4` or `_block10`.
//!   These kernels also use vec4 accesses.
//! - `_any`: tensors that do not allow vec4 accesses.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, Scalar, Vectorized};

use crate::heads::block::head_rows;
use crate::heads::block_registers::register_rows;
use crate::heads::norm::{HeadNorm, Layer};
#[cfg(not(target_arch = "nvptx64"))]
use crate::heads::params::REDUCE_BYTES;
use crate::heads::params::{HeadParams, HeadsOperand, Rotary};
use crate::heads::rms_norm::Rms;
use crate::heads::warp::head_lanes;
use crate::heads::warp_halves::head_halves;
use crate::heads::warp_own_angles::paired_heads;

/// # Safety
/// The requirements of [`head_lanes`] apply.
#[inline(always)]
unsafe fn lanes<T: Elem, N: HeadNorm, const TILES: usize, const TOGETHER: usize, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<128, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel.
    unsafe { head_lanes::<T, N, TILES, TOGETHER>(q, k, rotary, p) }
}

/// # Safety
/// The requirements of [`head_halves`] apply.
#[inline(always)]
unsafe fn halves<T: Elem, const DIM: u32>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams) {
    thread::launch_bounds::<256, 4>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel.
    unsafe { head_halves::<T, Rms, DIM, 2>(q, k, rotary, p) }
}

/// # Safety
/// The requirements of [`paired_heads`] apply.
#[inline(always)]
unsafe fn paired<T: Elem>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams) {
    thread::launch_bounds::<256, 4>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel.
    unsafe { paired_heads::<T, Rms>(q, k, rotary, p) }
}

/// # Safety
/// The requirements of [`register_rows`] apply.
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<128, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel.
    unsafe { register_rows::<T, IN_REGISTERS>(q, k, rotary, p) }
}

/// # Safety
/// The requirements of [`head_rows`] apply.
#[inline(always)]
unsafe fn rows<T: Elem, N: HeadNorm, A: Access, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel.
    unsafe { head_rows::<T, N, A>(q, k, rotary, p) }
}

entry! {
    qk_norm_rope_rms_d64_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => halves::<T, 64>(q, k, rotary, p);
    qk_norm_rope_rms_d128_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => halves::<T, 128>(q, k, rotary, p);
    qk_norm_rope_rms_qk_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => paired::<T>(q, k, rotary, p);
    @shared(|_block| REDUCE_BYTES)
    qk_norm_rope_rms_block4<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => in_registers::<T, 4, { if size_of::<T>() == 4 { 6 } else { 8 } }>(q, k, rotary, p);
    @shared(|_block| REDUCE_BYTES)
    qk_norm_rope_rms_block10<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => in_registers::<T, 10, { if size_of::<T>() == 4 { 3 } else { 5 } }>(q, k, rotary, p);
    qk_norm_rope_rms_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => lanes::<T, Rms, 1, 4, { if size_of::<T>() == 4 { 5 } else { 6 } }>(q, k, rotary, p);
    qk_norm_rope_rms_warp2<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => lanes::<T, Rms, 2, 2, { if size_of::<T>() == 4 { 5 } else { 6 } }>(q, k, rotary, p);
    @shared(|block| p.staged_bytes::<T>(block) + REDUCE_BYTES)
    qk_norm_rope_rms_smem<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Rms, Vectorized, 3>(q, k, rotary, p);
    @shared(|block| p.staged_bytes::<T>(block) + REDUCE_BYTES)
    qk_norm_rope_rms_any<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Rms, Scalar, 1>(q, k, rotary, p);
    qk_norm_rope_layer_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => lanes::<T, Layer, 1, 4, 5>(q, k, rotary, p);
    @shared(|block| p.staged_bytes::<T>(block) + REDUCE_BYTES)
    qk_norm_rope_layer_smem<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Layer, Vectorized, 3>(q, k, rotary, p);
    @shared(|block| p.staged_bytes::<T>(block) + REDUCE_BYTES)
    qk_norm_rope_layer_any<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams)
        => rows::<T, Layer, Scalar, 1>(q, k, rotary, p)
}
