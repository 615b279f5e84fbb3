//! `y = norm(x) * (1 + scale) + shift`: a LayerNorm or an RMSNorm with the modulation of a diffusion
//! transformer, in one pass; and a second modulation of the same norm beside it.
//!
//! `scale` and `shift` are for all rows, for a batch, or for a token, and may be the sum of a table and a
//! value.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::{
    Access, BlockRegisters, BlockRegistersStaged, Scalar, Vectorized, WarpRegisters, WholeTiles,
};

use crate::norm::affine::{Affine, Modulated, Norm, Parameters};
use crate::norm::known_form::{Formed, RoundEach, in_form};
use crate::norm::modulation::ModulatedNorm;
use crate::norm::operand_forms::ModulationSource;
use crate::norm::params::{F32, KnownForm, NormParams, RowAccess, Same, Tabled, WithAffine};
use crate::norm::reduce::warp::{LayerNorm, MeanSquare};
use crate::norm::row_context::RowContext;

/// Both passes, for each form.
struct AdaNormPasses<T, N, const OUTPUTS: usize, A> {
    row: RowContext<T, A>,
    normed: ModulatedNorm<N, Vec4Row<T, A>, OUTPUTS>,
}

impl<T: Elem, N: Norm, const OUTPUTS: usize, A: Access> Formed<T, A> for AdaNormPasses<T, N, OUTPUTS, A> {
    #[inline(always)]
    unsafe fn run<F: ModulationSource<T>, P: Parameters, R: RoundEach>(self, rounds: R) {
        // SAFETY: as the caller promises.
        unsafe { self.normed.run::<T, F, P, R, A>(&self.row, rounds) }
    }
}

/// # Safety
/// The host checked that `x` and each `y` hold `p.rows` rows of `p.cols` elements, scales and shifts as many,
/// of the types that their kinds say, weight, bias and tables one row, all as `A` says, that each `y`
/// overlaps nothing else, and that `p.form` is theirs.
#[inline(always)]
unsafe fn ada_norm<T: Elem, N: Norm, const OUTPUTS: usize, A: Access>(
    x: Rows,
    affine: Affine,
    outputs: [Modulated; OUTPUTS],
    p: NormParams,
) {
    let Some(row) = RowContext::<T, A>::of_warp(p) else { return };
    // SAFETY: as the caller promises; a warp's row is its own.
    unsafe {
        let source = Vec4Row::<T, A>::of(&x, row.at, row.columns);
        let normed = ModulatedNorm::<N, _, OUTPUTS> { source, affine, outputs, norm: PhantomData };
        in_form::<T, OUTPUTS, A>(AdaNormPasses { row, normed }, p);
    }
}

/// # Safety
/// As [`ada_norm`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem, N: Norm, const OUTPUTS: usize>(
    x: Rows,
    affine: Affine,
    outputs: [Modulated; OUTPUTS],
    p: NormParams,
) {
    thread::launch_bounds::<128, 4>();
    // SAFETY: the host sets `p.access` to what every operand is.
    unsafe {
        match p.access {
            RowAccess::VECTORIZED => ada_norm::<T, N, OUTPUTS, Vectorized>(x, affine, outputs, p),
            _ => ada_norm::<T, N, OUTPUTS, Scalar>(x, affine, outputs, p),
        }
    }
}

/// # Safety
/// As [`ada_norm`], for rows of as many tiles as `A` holds, and operands of the form `F`.
#[inline(always)]
unsafe fn in_registers<T: Elem, N: Norm, A: Access, F: KnownForm, const MIN_BLOCKS: u32>(
    x: Rows,
    affine: Affine,
    y: Modulated,
    p: NormParams,
) {
    // Of Turing's half as many threads each has the registers that it wants.
    thread::launch_bounds_by_generation::<64, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { ada_norm::<T, N, 1, A>(x, affine, [y], p.of_form::<F>()) }
}

/// # Safety
/// As [`ada_norm`], for rows of four times as many tiles as `A` holds, and operands of the form `F`.
#[inline(always)]
unsafe fn team<T: Elem, N: Norm, A: Access, F: KnownForm, const MIN_BLOCKS: u32>(
    x: Rows,
    affine: Affine,
    y: Modulated,
    p: NormParams,
) {
    // Of Turing's half as many threads each has the registers that it wants.
    thread::launch_bounds_by_generation::<128, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { ada_norm::<T, N, 1, A>(x, affine, [y], p.of_form::<F>()) }
}

/// # Safety
/// As [`ada_norm`], for rows of whole tiles.
#[inline(always)]
unsafe fn whole<T: Elem, N: Norm, const OUTPUTS: usize, const AMPERE: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    affine: Affine,
    outputs: [Modulated; OUTPUTS],
    p: NormParams,
) {
    thread::launch_bounds_by_generation::<128, MIN_BLOCKS, AMPERE, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { ada_norm::<T, N, OUTPUTS, WholeTiles>(x, affine, outputs, p) }
}

/// Blocks of 128 threads for each of which there are 96 registers, as many as the forms want; of a LayerNorm,
/// sm_80's code wants one more.
const BLOCKS: u32 = 5;

entry! {
    ada_norm_layer_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => any_layout::<T, LayerNorm, 1>(x, affine, [y], p);
    ada_norm_rms_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => any_layout::<T, MeanSquare, 1>(x, affine, [y], p);
    ada_norm_pair_layer_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: NormParams)
        => any_layout::<T, LayerNorm, 2>(x, affine, [y, y2], p);
    ada_norm_pair_rms_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: NormParams)
        => any_layout::<T, MeanSquare, 2>(x, affine, [y, y2], p);
    ada_norm_layer_smem1<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => whole::<T, LayerNorm, 1, 4, BLOCKS>(x, affine, [y], p);
    ada_norm_layer_smem1<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => whole::<T, LayerNorm, 1, 4, 4>(x, affine, [y], p);
    ada_norm_rms_smem1<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => whole::<T, MeanSquare, 1, BLOCKS, BLOCKS>(x, affine, [y], p);
    ada_norm_rms_smem1<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => whole::<T, MeanSquare, 1, 4, 4>(x, affine, [y], p);
    ada_norm_layer_same_warp12<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => in_registers::<T, LayerNorm, WarpRegisters<12>, Same, 12>(x, affine, y, p);
    ada_norm_layer_same_warp12<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => in_registers::<T, LayerNorm, WarpRegisters<12>, Same, 6>(x, affine, y, p);
    ada_norm_layer_f32_warp12<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => in_registers::<T, LayerNorm, WarpRegisters<12>, F32, 10>(x, affine, y, p);
    ada_norm_layer_same_block6<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<6>, Same, 9>(x, affine, y, p);
    ada_norm_layer_same_block6<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<6>, Same, 5>(x, affine, y, p);
    ada_norm_layer_affine_block6<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<6>, WithAffine, 10>(x, affine, y, p);
    ada_norm_layer_f32_block10<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<10>, F32, 8>(x, affine, y, p);
    ada_norm_rms_same_block4<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Same, 12>(x, affine, y, p);
    ada_norm_rms_same_block4<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Same, 7>(x, affine, y, p);
    ada_norm_rms_tabled_block4<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Tabled, 10>(x, affine, y, p);
    ada_norm_rms_tabled_block4<T: [f32]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Tabled, 7>(x, affine, y, p);
    ada_norm_pair_layer_smem1<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: NormParams)
        => whole::<T, LayerNorm, 2, 4, 4>(x, affine, [y, y2], p);
    ada_norm_pair_rms_smem1<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: NormParams)
        => whole::<T, MeanSquare, 2, 4, 4>(x, affine, [y, y2], p)
}
