//! RoPE of queries and keys, for calls whose positions choose the rows of the tables, and for calls whose
//! outputs are their inputs. The formula is that of [`rope`](super::rope).
//!
//! The suffixes of kernel names have these meanings:
//!
//! - `_d64_warp1` and `_d128_warp1`: heads of 64 or 128 columns. RoPE rotates all columns, with angles from
//!   tables. The outputs must not be the inputs.
//! - `_block`: all other heads that allow vec4 accesses (four columns at a time).
//! - `_any`: tensors that do not allow vec4 accesses.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, Scalar, Vectorized};

use crate::heads::norm::AsItIs;
use crate::heads::params::{HeadParams, HeadsOperand, PositionedRotary};
use crate::heads::partition::WarpTask;
use crate::heads::rope_in_place::rotated_in_place;
use crate::heads::warp_halves::head_halves;

/// # Safety
/// The requirements of [`head_halves`] apply.
#[inline(always)]
unsafe fn halves<T: Elem, const DIM: u32, const MIN_BLOCKS: u32>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: PositionedRotary,
    p: HeadParams,
) {
    thread::launch_bounds::<256, MIN_BLOCKS>();
    let Some(task) = WarpTask::of_grid(&p) else { return };
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel. The
    // positions have an entry for each token that RoPE rotates.
    unsafe { head_halves::<T, AsItIs, DIM, 4>(q, k, rotary.of_token::<T>(task.token, true), p) }
}

/// # Safety
/// The requirements of [`rotated_in_place`] apply.
#[inline(always)]
unsafe fn in_place<T: Elem, A: Access>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: PositionedRotary,
    p: HeadParams,
) {
    thread::launch_bounds::<1024, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host chose a launch configuration that meets the requirements of this kernel.
    unsafe { rotated_in_place::<T, A>(q, k, rotary, p) }
}

entry! {
    rope_positions_d64_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => halves::<T, 64, { if size_of::<T>() == 4 { 3 } else { 4 } }>(q, k, rotary, p);
    rope_positions_d128_warp1<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => halves::<T, 128, { if size_of::<T>() == 4 { 3 } else { 4 } }>(q, k, rotary, p);
    rope_positions_block<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => in_place::<T, Vectorized>(q, k, rotary, p);
    rope_positions_any<T: [f32, f16, bf16]>(q: HeadsOperand, k: HeadsOperand, rotary: PositionedRotary, p: HeadParams)
        => in_place::<T, Scalar>(q, k, rotary, p)
}
