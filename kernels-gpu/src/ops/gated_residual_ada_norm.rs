//! `sum = x + gate * y`, `normed = norm(sum) * (1 + scale) + shift`: the end of one block of a diffusion transformer and
//! the beginning of the next in one pass, both results out. The norm reads the rounded sum.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::{HELD, HELD_BLOCK, HELD_TEAM, TEAM, WHOLE};

use crate::norm::affine::{Affine, Modulated, Norm, Parameters};
use crate::norm::gated_residual::{Gated, GatedRow};
use crate::norm::modulation::{Formed, Normed, RoundEach, in_form};
use crate::norm::operand_forms::Form;
use crate::norm::params::{Params, with_any_access};
use crate::norm::passes::Passes;
use crate::norm::reduce::warp::{LayerNorm, MeanSquare};

/// Both passes, for each form: the gate has that of scale and shift.
struct Both<T, N, const ACCESS: u32> {
    passes: Passes<T, ACCESS>,
    gated: Gated,
    affine: Affine,
    normed: Modulated,
    norm: PhantomData<N>,
}

impl<T: Elem, N: Norm, const ACCESS: u32> Formed<T, ACCESS> for Both<T, N, ACCESS> {
    #[inline(always)]
    unsafe fn run<F: Form<T>, A: Parameters, R: RoundEach>(self, rounds: R) {
        let Self { passes, gated, affine, normed, norm } = self;
        // SAFETY: as the caller promises; a warp's row is its own.
        unsafe {
            let source = GatedRow::<T, F, ACCESS>::of(&gated, &passes.row, rounds);
            Normed { source, affine, outputs: [normed], norm }.run::<T, F, A, R, ACCESS>(&passes, rounds);
        }
    }
}

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
    let both = Both::<T, N, ACCESS> { passes, gated, affine, normed, norm: PhantomData };
    // SAFETY: as the caller promises.
    unsafe { in_form::<T, 1, ACCESS>(both, p) }
}

/// # Safety
/// As [`gated_residual_ada_norm`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem, N: Norm>(gated: Gated, affine: Affine, normed: Modulated, p: Params) {
    thread::launch_bounds::<128, 4>();
    // SAFETY: the host sets `p.access` to what every operand is.
    unsafe {
        with_any_access!(p, ACCESS => gated_residual_ada_norm::<T, N, ACCESS>(gated, affine, normed, p))
    }
}

/// # Safety
/// As [`gated_residual_ada_norm`], for rows of `ACCESS - HELD` tiles.
#[inline(always)]
unsafe fn held<T: Elem, N: Norm, const ACCESS: u32, const MIN_BLOCKS: u32>(
    gated: Gated,
    affine: Affine,
    normed: Modulated,
    p: Params,
) {
    // Of Turing's half as many threads each has the registers that it wants.
    thread::launch_bounds_by_generation::<64, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { gated_residual_ada_norm::<T, N, ACCESS>(gated, affine, normed, p) }
}

/// # Safety
/// As [`gated_residual_ada_norm`], for rows of four times `ACCESS - HELD_TEAM` or `- HELD_BLOCK` tiles, and operands of the form `FORM`.
#[inline(always)]
unsafe fn team<T: Elem, N: Norm, const ACCESS: u32, const FORM: u32, const MIN_BLOCKS: u32>(
    gated: Gated,
    affine: Affine,
    normed: Modulated,
    p: Params,
) {
    // SAFETY: as the caller promises.
    unsafe { whole::<T, N, ACCESS, MIN_BLOCKS, MIN_BLOCKS>(gated, affine, normed, p.of_form::<FORM>()) }
}

/// # Safety
/// As [`gated_residual_ada_norm`], for rows of whole tiles.
#[inline(always)]
unsafe fn whole<T: Elem, N: Norm, const ACCESS: u32, const AMPERE: u32, const MIN_BLOCKS: u32>(
    gated: Gated,
    affine: Affine,
    normed: Modulated,
    p: Params,
) {
    // Of Turing's half as many threads each has the registers that it wants. `AMPERE`: blocks of an SM of sm_80, where
    // ptxas needs more registers for the same code.
    thread::launch_bounds_by_generation::<128, 4, AMPERE, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { gated_residual_ada_norm::<T, N, ACCESS>(gated, affine, normed, p) }
}

entry! {
    gated_residual_ada_norm_layer<T: [f32, f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => any_layout::<T, LayerNorm>(gated, affine, normed, p);
    gated_residual_ada_norm_rms<T: [f32, f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => any_layout::<T, MeanSquare>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_whole<T: [f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => whole::<T, LayerNorm, WHOLE, 4, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_whole<T: [f32]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => whole::<T, LayerNorm, WHOLE, 4, 4>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_whole<T: [f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => whole::<T, MeanSquare, WHOLE, 5, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_whole<T: [f32]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => whole::<T, MeanSquare, WHOLE, 4, 4>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_held12<T: [bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => held::<T, LayerNorm, { HELD + 12 }, 8>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_held12<T: [f32, f16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => held::<T, LayerNorm, { HELD + 12 }, 4>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_team<T: [f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => whole::<T, LayerNorm, TEAM, 7, 7>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_team<T: [f32]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => whole::<T, LayerNorm, TEAM, 5, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_team<T: [f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => whole::<T, MeanSquare, TEAM, 8, 8>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_team<T: [f32]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => whole::<T, MeanSquare, TEAM, 5, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_block6_same<T: [f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => team::<T, LayerNorm, { HELD_BLOCK + 6 }, { Params::SAME }, 8>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_block6_same<T: [f32]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => team::<T, LayerNorm, { HELD_BLOCK + 6 }, { Params::SAME }, 4>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_block10_single<T: [f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => team::<T, LayerNorm, { HELD_BLOCK + 10 }, { Params::SINGLE }, 6>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_team4_same<T: [f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => team::<T, MeanSquare, { HELD_TEAM + 4 }, { Params::SAME }, 9>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_team4_same<T: [f32]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => team::<T, MeanSquare, { HELD_TEAM + 4 }, { Params::SAME }, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_team4_tabled<T: [f16, bf16]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => team::<T, MeanSquare, { HELD_TEAM + 4 }, { Params::TABLED }, 8>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_team4_tabled<T: [f32]>(gated: Gated, affine: Affine, normed: Modulated, p: Params)
        => team::<T, MeanSquare, { HELD_TEAM + 4 }, { Params::TABLED }, 5>(gated, affine, normed, p)
}
