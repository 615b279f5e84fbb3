//! `sum = x + gate * y`, `normed = norm(sum) * (1 + scale) + shift`: the end of one block of a diffusion transformer and
//! the beginning of the next in one pass, both results out. The norm reads the rounded sum.
use cuda_std::prelude::*;

use crate::affine::{Affine, Modulated, Norm};
use crate::gated::{Gated, GatedRow};
use crate::modulated::modulate;
use crate::moments::{LayerNorm, MeanSquare};
use crate::passes::{Params, Passes, with_access};

/// # Safety
/// As for the kernels of `gated_residual` and `ada_norm`; the two outputs do not overlap.
#[inline(always)]
unsafe fn gated_residual_ada_norm<T: Elem, N: Norm, const ACCESS: u32>(
    gated: Gated,
    affine: Affine,
    normed: Modulated,
    p: Params,
) {
    let Some(passes) = Passes::<T, ACCESS>::of_warp(p) else { return };
    // SAFETY: as the caller promises; a warp's row is its own.
    unsafe {
        let source = GatedRow::<T, ACCESS>::of(&gated, &passes);
        let stats = passes.reduce::<N, _>(source);
        modulate::<T, N, 1, ACCESS>(&passes, source, stats, affine, [normed], p);
    }
}

/// # Safety
/// As [`gated_residual_ada_norm`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem, N: Norm, const MIN_BLOCKS: u32>(
    gated: Gated,
    affine: Affine,
    normed: Modulated,
    p: Params,
) {
    thread::launch_bounds::<128, MIN_BLOCKS>();
    // SAFETY: the host sets `p.access` to what every operand is.
    unsafe { with_access!(p, ACCESS => gated_residual_ada_norm::<T, N, ACCESS>(gated, affine, normed, p)) }
}

entry! {
    gated_residual_ada_norm_layer<T: [f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => any_layout::<T, LayerNorm, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_layer<T: [f32]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => any_layout::<T, LayerNorm, 4>(gated, affine, normed, p);
    gated_residual_ada_norm_rms<T: [f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => any_layout::<T, MeanSquare, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_rms<T: [f32]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => any_layout::<T, MeanSquare, 4>(gated, affine, normed, p)
}
