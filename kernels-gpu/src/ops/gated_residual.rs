//! `sum = x + gate * y`: a residual connection with a gate for all rows, for a batch, or for a token.
//!
//! Element by element. A thread loads its packs before it computes any. `gated_residual_<dtype>` takes any layout;
//! `gated_residual_hold2_<dtype>` wants rows that can be read 16 bytes at a time ([`Rows::is_vector`]).
use cuda_std::prelude::*;

use crate::elementwise::{Extent, MAX_THREADS};
use crate::gated::{Gated, GatedPacks};

/// # Safety
/// The host checked that `x`, `y` and `sum` have the extent's rows, the gate as many of the type that its kind says, its
/// table one row, all `Rows::is_vector` if `VECTOR`, and that `sum` overlaps nothing else.
#[inline(always)]
unsafe fn gated_residual<T: Elem, const HELD: usize, const VECTOR: bool, const MIN_BLOCKS: u32>(
    gated: Gated,
    extent: Extent,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    let team = Team::of_block();
    let (at, cols) = extent.row(team);
    // SAFETY: as the caller promises; a team's row is its own.
    let row = unsafe { GatedPacks::<T, VECTOR>::of(&gated, team, at, cols) };
    for first in extent.parts::<HELD>() {
        row.add_tiles::<HELD>(first);
    }
}

entry! {
    gated_residual<T: [f32, f16, bf16]>(gated: Gated, extent: Extent)
        => gated_residual::<T, 1, false, 3>(gated, extent);
    gated_residual_hold2<T: [f32, f16, bf16]>(gated: Gated, extent: Extent)
        => gated_residual::<T, 2, true, 4>(gated, extent)
}
