//! `y = norm(x) * (1 + scale) + shift`: a LayerNorm or an RMSNorm with the modulation of a diffusion transformer, in one
//! pass; and a second modulation of the same norm beside it.
//!
//! `scale` and `shift` are for all rows, for a batch, or for a token, and may be the sum of a table and a value.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::{HELD, HELD_BLOCK, HELD_TEAM, WHOLE};

use crate::norm::affine::{Affine, Modulated, Norm, Parameters};
use crate::norm::modulation::{Formed, Normed, RoundEach, in_form};
use crate::norm::operand_forms::Form;
use crate::norm::params::{Params, with_any_access};
use crate::norm::passes::Passes;
use crate::norm::reduce::warp::{LayerNorm, MeanSquare};

/// Both passes, for each form.
struct Both<T, N, const OUTPUTS: usize, const ACCESS: u32> {
    passes: Passes<T, ACCESS>,
    normed: Normed<N, QuadRow<T, ACCESS>, OUTPUTS>,
}

impl<T: Elem, N: Norm, const OUTPUTS: usize, const ACCESS: u32> Formed<T, ACCESS>
    for Both<T, N, OUTPUTS, ACCESS>
{
    #[inline(always)]
    unsafe fn run<F: Form<T>, A: Parameters, R: RoundEach>(self, rounds: R) {
        // SAFETY: as the caller promises.
        unsafe { self.normed.run::<T, F, A, R, ACCESS>(&self.passes, rounds) }
    }
}

/// # Safety
/// The host checked that `x` and each `y` hold `p.rows` rows of `p.cols` elements, scales and shifts as many, of the types
/// that their kinds say, weight, bias and tables one row, all as `ACCESS` says, that each `y` overlaps
/// nothing else, and that `p.form` is theirs.
#[inline(always)]
unsafe fn ada_norm<T: Elem, N: Norm, const OUTPUTS: usize, const ACCESS: u32>(
    x: Rows,
    affine: Affine,
    outputs: [Modulated; OUTPUTS],
    p: Params,
) {
    let Some(passes) = Passes::<T, ACCESS>::of_warp(p) else { return };
    // SAFETY: as the caller promises; a warp's row is its own.
    unsafe {
        let source = QuadRow::<T, ACCESS>::of(&x, passes.row.at, passes.row.columns);
        let normed = Normed::<N, _, OUTPUTS> { source, affine, outputs, norm: PhantomData };
        in_form::<T, OUTPUTS, ACCESS>(Both { passes, normed }, p);
    }
}

/// # Safety
/// As [`ada_norm`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem, N: Norm, const OUTPUTS: usize>(
    x: Rows,
    affine: Affine,
    outputs: [Modulated; OUTPUTS],
    p: Params,
) {
    thread::launch_bounds::<128, 4>();
    // SAFETY: the host sets `p.access` to what every operand is.
    unsafe { with_any_access!(p, ACCESS => ada_norm::<T, N, OUTPUTS, ACCESS>(x, affine, outputs, p)) }
}

/// # Safety
/// As [`ada_norm`], for rows of `ACCESS - HELD` tiles, and operands of the form `FORM`.
#[inline(always)]
unsafe fn held<T: Elem, N: Norm, const ACCESS: u32, const FORM: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    affine: Affine,
    y: Modulated,
    p: Params,
) {
    // Of Turing's half as many threads each has the registers that it wants.
    thread::launch_bounds_by_generation::<64, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { ada_norm::<T, N, 1, ACCESS>(x, affine, [y], p.of_form::<FORM>()) }
}

/// # Safety
/// As [`ada_norm`], for rows of four times `ACCESS - HELD_TEAM` or `- HELD_BLOCK` tiles, and operands of the form `FORM`.
#[inline(always)]
unsafe fn team<T: Elem, N: Norm, const ACCESS: u32, const FORM: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    affine: Affine,
    y: Modulated,
    p: Params,
) {
    // Of Turing's half as many threads each has the registers that it wants.
    thread::launch_bounds_by_generation::<128, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { ada_norm::<T, N, 1, ACCESS>(x, affine, [y], p.of_form::<FORM>()) }
}

/// # Safety
/// As [`ada_norm`], for rows of whole tiles.
#[inline(always)]
unsafe fn whole<T: Elem, N: Norm, const OUTPUTS: usize, const AMPERE: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    affine: Affine,
    outputs: [Modulated; OUTPUTS],
    p: Params,
) {
    thread::launch_bounds_by_generation::<128, MIN_BLOCKS, AMPERE, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { ada_norm::<T, N, OUTPUTS, WHOLE>(x, affine, outputs, p) }
}

/// Blocks of 128 threads for each of which there are 96 registers, as many as the forms want; of a LayerNorm, sm_80's
/// code wants one more.
const BLOCKS: u32 = 5;

entry! {
    ada_norm_layer<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => any_layout::<T, LayerNorm, 1>(x, affine, [y], p);
    ada_norm_rms<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => any_layout::<T, MeanSquare, 1>(x, affine, [y], p);
    ada_norm_pair_layer<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: Params)
        => any_layout::<T, LayerNorm, 2>(x, affine, [y, y2], p);
    ada_norm_pair_rms<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: Params)
        => any_layout::<T, MeanSquare, 2>(x, affine, [y, y2], p);
    ada_norm_layer_whole<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => whole::<T, LayerNorm, 1, 4, BLOCKS>(x, affine, [y], p);
    ada_norm_layer_whole<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => whole::<T, LayerNorm, 1, 4, 4>(x, affine, [y], p);
    ada_norm_rms_whole<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => whole::<T, MeanSquare, 1, BLOCKS, BLOCKS>(x, affine, [y], p);
    ada_norm_rms_whole<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => whole::<T, MeanSquare, 1, 4, 4>(x, affine, [y], p);
    ada_norm_layer_held12_same<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => held::<T, LayerNorm, { HELD + 12 }, { Params::SAME }, 12>(x, affine, y, p);
    ada_norm_layer_held12_same<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => held::<T, LayerNorm, { HELD + 12 }, { Params::SAME }, 6>(x, affine, y, p);
    ada_norm_layer_held12_single<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => held::<T, LayerNorm, { HELD + 12 }, { Params::SINGLE }, 10>(x, affine, y, p);
    ada_norm_layer_block6_same<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => team::<T, LayerNorm, { HELD_BLOCK + 6 }, { Params::SAME }, 9>(x, affine, y, p);
    ada_norm_layer_block6_same<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => team::<T, LayerNorm, { HELD_BLOCK + 6 }, { Params::SAME }, 5>(x, affine, y, p);
    ada_norm_layer_block6_affine<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => team::<T, LayerNorm, { HELD_BLOCK + 6 }, { Params::AFFINE }, 10>(x, affine, y, p);
    ada_norm_layer_block10_single<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => team::<T, LayerNorm, { HELD_BLOCK + 10 }, { Params::SINGLE }, 8>(x, affine, y, p);
    ada_norm_rms_team4_same<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => team::<T, MeanSquare, { HELD_TEAM + 4 }, { Params::SAME }, 12>(x, affine, y, p);
    ada_norm_rms_team4_same<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => team::<T, MeanSquare, { HELD_TEAM + 4 }, { Params::SAME }, 7>(x, affine, y, p);
    ada_norm_rms_team4_tabled<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => team::<T, MeanSquare, { HELD_TEAM + 4 }, { Params::TABLED }, 10>(x, affine, y, p);
    ada_norm_rms_team4_tabled<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: Params)
        => team::<T, MeanSquare, { HELD_TEAM + 4 }, { Params::TABLED }, 7>(x, affine, y, p);
    ada_norm_pair_layer_whole<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: Params)
        => whole::<T, LayerNorm, 2, 4, 4>(x, affine, [y, y2], p);
    ada_norm_pair_rms_whole<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: Params)
        => whole::<T, MeanSquare, 2, 4, 4>(x, affine, [y, y2], p)
}
