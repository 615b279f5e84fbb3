//! `sum = x + gate * y`: a residual connection with a gate for all rows, for a batch, or for a token.
use cuda_std::prelude::*;

use crate::gated::{Gated, GatedRow};
use crate::operand::ModulationRow;
use crate::passes::{Params, Passes};
use crate::side::{Form, Plain};

/// # Safety
/// The host checked that `x`, `y` and `sum` hold `p.rows` rows of `p.cols` elements, the gate as many of the type that its
/// kind says, its table one row, all `Rows::is_quads` if `VECTOR`, that `sum` overlaps nothing else, and that the gate
/// is of the form `F`.
#[inline(always)]
unsafe fn gated_residual<T: Elem, F: Form<T>, const VECTOR: bool>(gated: Gated, p: Params) {
    let Some(passes) = Passes::<T, VECTOR>::of_warp(p, 2) else { return };
    // SAFETY: as the caller promises; a warp's row is its own.
    let row = unsafe { GatedRow::<T, F, VECTOR>::of(&gated, passes.at, passes.columns) };
    row.stage(&passes);
    passes.wait();
    passes.visit(row, |_, _| ());
}

/// # Safety
/// As [`gated_residual`], for any layout and form.
#[inline(always)]
unsafe fn any_layout<T: Elem>(gated: Gated, p: Params) {
    thread::launch_bounds::<128, 6>();
    // SAFETY: the host sets `p.vector` only where every operand is, and names the gate's form.
    unsafe {
        if p.vector == 0 {
            gated_residual::<T, ModulationRow<T, false>, false>(gated, p)
        } else if gated.form == Params::SAME {
            gated_residual::<T, Plain<T, true>, true>(gated, p)
        } else if size_of::<T>() == 2 && gated.form == Params::SINGLE {
            gated_residual::<T, Plain<f32, true>, true>(gated, p)
        } else {
            gated_residual::<T, ModulationRow<T, true>, true>(gated, p)
        }
    }
}

entry! {
    gated_residual<T: [f32, f16, bf16]>(gated: Gated, p: Params) => any_layout::<T>(gated, p)
}
