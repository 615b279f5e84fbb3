//! `sum = x + gate * y`, `normed = norm(sum) * (1 + scale) + shift`: the end of one block of a diffusion
//! transformer and the beginning of the next in one pass, both results out. The norm reads the rounded sum.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::{
    Access, BlockRegisters, BlockRegistersStaged, BlockTiles, Scalar, Vectorized, WarpRegisters, WholeTiles,
};

use crate::norm::affine::{Affine, Modulated, Norm, Parameters};
use crate::norm::gated_residual::{GatedResidualArg, GatedRow};
use crate::norm::known_form::{Formed, RoundEach, in_form};
use crate::norm::modulation::ModulatedNorm;
use crate::norm::operand_forms::ModulationSource;
use crate::norm::params::{F32, KnownForm, NormParams, RowAccess, Same, Tabled};
use crate::norm::reduce::warp::{LayerNorm, MeanSquare};
use crate::norm::row_context::RowContext;

/// Both passes, for each form: the gate has that of scale and shift.
struct GatedAdaNormPasses<T, N, A> {
    row: RowContext<T, A>,
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    norm: PhantomData<N>,
}

impl<T: Elem, N: Norm, A: Access> Formed<T, A> for GatedAdaNormPasses<T, N, A> {
    #[inline(always)]
    unsafe fn run<F: ModulationSource<T>, P: Parameters, R: RoundEach>(self, rounds: R) {
        let Self { row, gated, affine, normed, norm } = self;
        // SAFETY: as the caller promises; a warp's row is its own.
        unsafe {
            let source = GatedRow::<T, F, A>::of(&gated, &row, rounds);
            ModulatedNorm { source, affine, outputs: [normed], norm }.run::<T, F, P, R, A>(&row, rounds);
        }
    }
}

/// # Safety
/// As for the kernels of `gated_residual` and `ada_norm`; the two outputs do not overlap.
#[inline(always)]
unsafe fn gated_residual_ada_norm<T: Elem, N: Norm, A: Access>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    p: NormParams,
) {
    let Some(row) = RowContext::<T, A>::of_warp(p) else { return };
    let both = GatedAdaNormPasses::<T, N, A> { row, gated, affine, normed, norm: PhantomData };
    // SAFETY: as the caller promises.
    unsafe { in_form::<T, 1, A>(both, p) }
}

/// # Safety
/// As [`gated_residual_ada_norm`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem, N: Norm>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    p: NormParams,
) {
    thread::launch_bounds::<128, 4>();
    // SAFETY: the host sets `p.access` to what every operand is.
    unsafe {
        match p.access {
            RowAccess::VECTORIZED => gated_residual_ada_norm::<T, N, Vectorized>(gated, affine, normed, p),
            _ => gated_residual_ada_norm::<T, N, Scalar>(gated, affine, normed, p),
        }
    }
}

/// # Safety
/// As [`gated_residual_ada_norm`], for rows of as many tiles as `A` holds.
#[inline(always)]
unsafe fn in_registers<T: Elem, N: Norm, A: Access, const MIN_BLOCKS: u32>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    p: NormParams,
) {
    // Of Turing's half as many threads each has the registers that it wants.
    thread::launch_bounds_by_generation::<64, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { gated_residual_ada_norm::<T, N, A>(gated, affine, normed, p) }
}

/// # Safety
/// As [`gated_residual_ada_norm`], for rows of four times as many tiles as `A` holds, and operands of the form `F`.
#[inline(always)]
unsafe fn team<T: Elem, N: Norm, A: Access, F: KnownForm, const MIN_BLOCKS: u32>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    p: NormParams,
) {
    // SAFETY: as the caller promises.
    unsafe { whole::<T, N, A, MIN_BLOCKS>(gated, affine, normed, p.of_form::<F>()) }
}

/// # Safety
/// As [`gated_residual_ada_norm`], for rows of whole tiles.
#[inline(always)]
unsafe fn whole<T: Elem, N: Norm, A: Access, const MIN_BLOCKS: u32>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    p: NormParams,
) {
    // Of Turing's half as many threads each has the registers that it wants.
    thread::launch_bounds_by_generation::<128, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { gated_residual_ada_norm::<T, N, A>(gated, affine, normed, p) }
}

entry! {
    gated_residual_ada_norm_layer_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => any_layout::<T, LayerNorm>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => any_layout::<T, MeanSquare>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_smem1<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, LayerNorm, WholeTiles, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_smem1<T: [f32]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, LayerNorm, WholeTiles, 4>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_smem1<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, MeanSquare, WholeTiles, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_smem1<T: [f32]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, MeanSquare, WholeTiles, 4>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_warp12<T: [bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => in_registers::<T, LayerNorm, WarpRegisters<12>, 8>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_warp12<T: [f32, f16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => in_registers::<T, LayerNorm, WarpRegisters<12>, 4>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_smem4<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, LayerNorm, BlockTiles, 7>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_smem4<T: [f32]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, LayerNorm, BlockTiles, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_smem4<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, MeanSquare, BlockTiles, 8>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_smem4<T: [f32]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, MeanSquare, BlockTiles, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_same_block6<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<6>, Same, 8>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_same_block6<T: [f32]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<6>, Same, 4>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_f32_block10<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<10>, F32, 6>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_same_block4<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Same, 9>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_same_block4<T: [f32]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Same, 5>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_tabled_block4<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Tabled, 8>(gated, affine, normed, p);
    gated_residual_ada_norm_rms_tabled_block4<T: [f32]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Tabled, 5>(gated, affine, normed, p)
}
