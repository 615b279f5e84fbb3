//! `sum = x + gate * y`, `normed = norm(sum) * (1 + scale) + shift`: the end of one block of a diffusion transformer and
//! the beginning of the next in one pass, both results out. The norm reads the rounded sum.
use cuda_std::prelude::*;

use crate::affine::{Affine, Modulated, Norm};
use crate::gated::{Gated, GatedRow};
use crate::modulated::modulate;
use crate::moments::{LayerNorm, MeanSquare};
use crate::operand::ModulationRow;
use crate::passes::{Params, Passes};
use crate::side::{Form, Plain};

/// # Safety
/// As for the kernels of `gated_residual` and `ada_norm`; the two outputs do not overlap.
#[inline(always)]
unsafe fn gated_residual_ada_norm<T: Elem, N: Norm, F: Form<T>, const VECTOR: bool>(
    gated: Gated,
    affine: Affine,
    normed: Modulated,
    p: Params,
) {
    let Some(passes) = Passes::<T, VECTOR>::of_warp(p, 2) else { return };
    // SAFETY: as the caller promises; a warp's row is its own.
    unsafe {
        let source = GatedRow::<T, F, VECTOR>::of(&gated, passes.at, passes.columns);
        source.stage(&passes);
        passes.wait();
        let stats = passes.reduce::<N>(source, true);
        modulate::<T, N, 1, VECTOR>(&passes, source, stats, affine, [normed], p);
    }
}

/// # Safety
/// As [`gated_residual_ada_norm`], for any layout and form.
#[inline(always)]
unsafe fn any_layout<T: Elem, N: Norm>(gated: Gated, affine: Affine, normed: Modulated, p: Params) {
    thread::launch_bounds::<128, 5>();
    // SAFETY: the host sets `p.vector` only where every operand is, and names the gate's form.
    unsafe {
        if p.vector == 0 {
            gated_residual_ada_norm::<T, N, ModulationRow<T, false>, false>(gated, affine, normed, p)
        } else if gated.form == Params::SAME {
            gated_residual_ada_norm::<T, N, Plain<T, true>, true>(gated, affine, normed, p)
        } else {
            gated_residual_ada_norm::<T, N, ModulationRow<T, true>, true>(gated, affine, normed, p)
        }
    }
}

entry! {
    gated_residual_ada_norm_layer<T: [f32, f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => any_layout::<T, LayerNorm>(gated, affine, normed, p);
    gated_residual_ada_norm_rms<T: [f32, f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => any_layout::<T, MeanSquare>(gated, affine, normed, p)
}
