//! `sum = x + gate * y`: a residual connection with a gate for all rows, for a batch, or for a token.
use cuda_std::prelude::*;

use crate::gated::{Gated, GatedRow};
use crate::passes::{Params, Passes};

/// # Safety
/// The host checked that `x`, `y` and `sum` hold `p.rows` rows of `p.cols` elements, the gate as many of the type that its
/// kind says, its table one row, all `Rows::is_quads` if `VECTOR`, and that `sum` overlaps nothing else.
#[inline(always)]
unsafe fn gated_residual<T: Elem, const VECTOR: bool>(gated: Gated, p: Params) {
    let passes = Passes::<T, VECTOR>::of_block(&mut SharedMemory::of_launch(), p);
    // SAFETY: as the caller promises; a team's row is its own.
    let row = unsafe { GatedRow::<T, VECTOR>::of(&gated, passes.at, passes.columns) };
    passes.visit(row, 8, |_, _| ());
}

/// # Safety
/// As [`gated_residual`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem>(gated: Gated, p: Params) {
    thread::launch_bounds::<128, 6>();
    // SAFETY: the host sets `p.vector` only where every operand is.
    unsafe {
        if p.vector != 0 { gated_residual::<T, true>(gated, p) } else { gated_residual::<T, false>(gated, p) }
    }
}

entry! {
    gated_residual<T: [f32, f16, bf16]>(gated: Gated, p: Params) => any_layout::<T>(gated, p)
}
