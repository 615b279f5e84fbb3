//! `sum = x + gate * y` and `normed = norm(sum) * (1 + scale) + shift`, both written by one kernel. In a
//! diffusion transformer, one transformer block ends with this sum, and the next transformer block starts
//! with this norm. The norm is a LayerNorm or an RMSNorm. Its input is the rounded sum.
//!
//! `layer`, `rms` and `fused_rms` in the name of a kernel say which norm it computes, as for
//! [`ada_norm`](super::ada_norm).
//!
//! The suffixes of kernel names have these meanings:
//!
//! - `_any` takes any layout.
//! - `_smem1` needs rows of whole tiles of 128 columns. Each warp reduces a row, and then computes `normed`
//!   from a copy of the row in shared memory.
//! - `_smem4` needs rows of whole tiles of 128 columns. The four warps of a block reduce one row together,
//!   and then compute `normed` from a copy of the row in shared memory.
//! - `_warp<n>` keeps a row of `n` tiles in the registers of one warp.
//! - `_block<n>` keeps a row of `4 n` tiles in the registers of the four warps of a block.
//! - `_mixed` takes operands of any dtypes, with one column, or chosen by an index: see
//!   [`norm::mixed`](crate::norm::mixed).
//! - `_same`, `_f32` and `_tabled` are each compiled for one combination of operand dtypes: see
//!   [`OperandForm`](crate::norm::params::OperandForm).
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::{
    Access, BlockRegisters, BlockRegistersStaged, BlockTiles, Scalar, Vectorized, WarpRegisters, WholeTiles,
};

use crate::norm::affine::{Affine, Modulated, Norm, Parameters};
use crate::norm::gated_residual::{GatedResidualArg, GatedRow};
use crate::norm::known_form::{Formed, RoundEach, in_form};
use crate::norm::mixed::{Mixed, MixedAffine, MixedGatedRow, MixedModulationRow};
use crate::norm::modulation::ModulatedNorm;
use crate::norm::operand_forms::ModulationSource;
use crate::norm::params::{F32, KnownForm, NormParams, RowAccess, Same, Tabled};
use crate::norm::reduce::warp::{FusedMeanSquare, LayerNorm, MeanSquare};
use crate::norm::row_context::RowContext;

/// Computes `sum = x + gate * y`, reduces this row, and writes `norm(sum) * (1 + scale) + shift`. This code
/// is compiled once for each form, which states the dtypes of the operands and whether a table is added to
/// them. Gate, scale and shift have the same dtype.
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
        // SAFETY: the caller passes operands with the dtypes that the loaders `F` and `P` expect. Only the
        // calling warp (or its block, if four warps share a row) writes row `row.at` of the outputs.
        unsafe {
            let source = GatedRow::<T, F, A>::of(&gated, &row, rounds);
            ModulatedNorm { source, affine, outputs: [normed], norm }.run::<T, F, P, R, A>(&row, rounds);
        }
    }
}

/// # Safety
/// The requirements of the kernels for the operators `gated_residual` and `ada_norm` apply, and the host
/// checked them. The outputs `sum` and `normed` do not overlap.
#[inline(always)]
unsafe fn gated_residual_ada_norm<T: Elem, N: Norm, A: Access>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    p: NormParams,
) {
    let Some(row) = RowContext::<T, A>::of_warp(p) else { return };
    let both = GatedAdaNormPasses::<T, N, A> { row, gated, affine, normed, norm: PhantomData };
    // SAFETY: the kernel body accesses only its operands. The host checked their shapes and alignment, and
    // `p.form` states their dtypes.
    unsafe { in_form::<T, 1, A>(both, p) }
}

/// # Safety
/// The requirements of [`gated_residual_ada_norm`] apply, for the access type (how many elements one load
/// reads) that `p.access` specifies.
#[inline(always)]
unsafe fn any_layout<T: Elem, N: Norm>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    p: NormParams,
) {
    thread::launch_bounds::<128, 4>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.access` to an access type (how many elements one load reads) that all
    // operands allow.
    unsafe {
        match p.access {
            RowAccess::VECTORIZED => gated_residual_ada_norm::<T, N, Vectorized>(gated, affine, normed, p),
            _ => gated_residual_ada_norm::<T, N, Scalar>(gated, affine, normed, p),
        }
    }
}

/// # Safety
/// The requirements of [`gated_residual_ada_norm`] apply. The access type `A` (how a thread reads rows) fixes
/// how many tiles (128 columns each) of a row stay in registers. A row has exactly this number of tiles.
#[inline(always)]
unsafe fn in_registers<T: Elem, N: Norm, A: Access, const MIN_BLOCKS: u32>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    p: NormParams,
) {
    // A Turing SM runs at most 1024 threads, fewer than newer SMs, but has as many registers. For Turing, the
    // launch bounds therefore require only 4 blocks per SM, so that each thread can use more registers.
    thread::launch_bounds_by_generation::<64, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The access type `A` (how a thread reads rows) fixes how many tiles (128 columns each) of a
    // row stay in registers. A row has exactly this number of tiles.
    unsafe { gated_residual_ada_norm::<T, N, A>(gated, affine, normed, p) }
}

/// # Safety
/// The requirements of [`gated_residual_ada_norm`] apply. The access type `A` (how a thread reads rows) fixes
/// how many tiles (128 columns each) stay in the registers of each warp. A row has four times this number of
/// tiles, because the four warps of a block share the row. The operands have the dtypes for which the type
/// `F` specializes the kernel.
#[inline(always)]
unsafe fn team<T: Elem, N: Norm, A: Access, F: KnownForm, const MIN_BLOCKS: u32>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    p: NormParams,
) {
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The operands have the dtypes for which the type `F` specializes the kernel. Their rows
    // consist of whole tiles (128 columns each).
    unsafe { whole::<T, N, A, MIN_BLOCKS>(gated, affine, normed, p.of_form::<F>()) }
}

/// # Safety
/// The requirements of [`gated_residual_ada_norm`] apply. All rows consist of whole tiles (128 columns each).
#[inline(always)]
unsafe fn whole<T: Elem, N: Norm, A: Access, const MIN_BLOCKS: u32>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    p: NormParams,
) {
    // A Turing SM runs at most 1024 threads, fewer than newer SMs, but has as many registers. For Turing, the
    // launch bounds therefore require only 4 blocks per SM, so that each thread can use more registers.
    thread::launch_bounds_by_generation::<128, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. Their rows consist of whole tiles (128 columns each).
    unsafe { gated_residual_ada_norm::<T, N, A>(gated, affine, normed, p) }
}

/// # Safety
/// The requirements of [`gated_residual_ada_norm`] apply, except that the operands may have any dtypes, which
/// their fields `kind` and `operands.y` state. If `operands.index` is not null, it has an integer for each
/// row, and gate, scale and shift have `operands.index_rows` rows. All operands allow the access type that
/// `p.access` specifies.
#[inline(always)]
unsafe fn mixed<T: Elem, N: Norm>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    operands: Mixed,
    p: NormParams,
) {
    // With four blocks per SM, ptxas spills registers.
    thread::launch_bounds::<128, 3>();
    // SAFETY: the host checked the shapes, dtypes and alignment of the operands.
    unsafe {
        match p.access {
            RowAccess::VECTORIZED => mixed_of::<T, N, Vectorized>(gated, affine, normed, operands, p),
            _ => mixed_of::<T, N, Scalar>(gated, affine, normed, operands, p),
        }
    }
}

/// # Safety
/// The requirements of [`mixed`] apply.
#[inline(always)]
unsafe fn mixed_of<T: Elem, N: Norm, A: Access>(
    gated: GatedResidualArg,
    affine: Affine,
    normed: Modulated,
    operands: Mixed,
    p: NormParams,
) {
    let Some(row) = RowContext::<T, A>::of_warp(p) else { return };
    // SAFETY: the kernel accesses only its operands. The host checked their shapes and alignment, and the
    // kinds state their dtypes. No other warp writes row `row.at` of the outputs.
    unsafe {
        let source = MixedGatedRow::<T, A>::of(&gated, &row, &operands);
        let both = ModulatedNorm::<N, _, 1> { source, affine, outputs: [normed], norm: PhantomData };
        let by_row = operands.row_of(row.at);
        both.run_by::<T, MixedModulationRow<A>, MixedAffine<A>, _, A>(&row, by_row, p.round_each != 0);
    }
}

entry! {
    @shared(|block| p.staged_bytes::<T>(2) * block[1])
    gated_residual_ada_norm_layer_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => any_layout::<T, LayerNorm>(gated, affine, normed, p);
    @shared(|block| p.staged_bytes::<T>(2) * block[1])
    gated_residual_ada_norm_rms_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => any_layout::<T, MeanSquare>(gated, affine, normed, p);
    @shared(|block| p.staged_bytes::<T>(2) * block[1])
    gated_residual_ada_norm_fused_rms_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => any_layout::<T, FusedMeanSquare>(gated, affine, normed, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    gated_residual_ada_norm_layer_mixed_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, operands: Mixed, p: NormParams)
        => mixed::<T, LayerNorm>(gated, affine, normed, operands, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    gated_residual_ada_norm_rms_mixed_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, operands: Mixed, p: NormParams)
        => mixed::<T, MeanSquare>(gated, affine, normed, operands, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    gated_residual_ada_norm_fused_rms_mixed_any<T: [f32, f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, operands: Mixed, p: NormParams)
        => mixed::<T, FusedMeanSquare>(gated, affine, normed, operands, p);
    @shared(|block| p.staged_bytes::<T>(2) * block[1])
    gated_residual_ada_norm_layer_smem1<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, LayerNorm, WholeTiles, 5>(gated, affine, normed, p),
            [f32] => whole::<T, LayerNorm, WholeTiles, 4>(gated, affine, normed, p);
    @shared(|block| p.staged_bytes::<T>(2) * block[1])
    gated_residual_ada_norm_rms_smem1<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, MeanSquare, WholeTiles, 5>(gated, affine, normed, p),
            [f32] => whole::<T, MeanSquare, WholeTiles, 4>(gated, affine, normed, p);
    @shared(|block| p.staged_bytes::<T>(2) * block[1])
    gated_residual_ada_norm_fused_rms_smem1<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, FusedMeanSquare, WholeTiles, 5>(gated, affine, normed, p),
            [f32] => whole::<T, FusedMeanSquare, WholeTiles, 4>(gated, affine, normed, p);
    gated_residual_ada_norm_layer_warp12<T: [bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => in_registers::<T, LayerNorm, WarpRegisters<12>, 8>(gated, affine, normed, p),
            [f32, f16] => in_registers::<T, LayerNorm, WarpRegisters<12>, 4>(gated, affine, normed, p);
    @shared(|_block| NormParams::SCRATCH_BYTES + p.staged_bytes::<T>(2))
    gated_residual_ada_norm_layer_smem4<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, LayerNorm, BlockTiles, 7>(gated, affine, normed, p),
            [f32] => whole::<T, LayerNorm, BlockTiles, 5>(gated, affine, normed, p);
    @shared(|_block| NormParams::SCRATCH_BYTES + p.staged_bytes::<T>(2))
    gated_residual_ada_norm_rms_smem4<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, MeanSquare, BlockTiles, 8>(gated, affine, normed, p),
            [f32] => whole::<T, MeanSquare, BlockTiles, 5>(gated, affine, normed, p);
    @shared(|_block| NormParams::SCRATCH_BYTES + p.staged_bytes::<T>(2))
    gated_residual_ada_norm_fused_rms_smem4<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => whole::<T, FusedMeanSquare, BlockTiles, 8>(gated, affine, normed, p),
            [f32] => whole::<T, FusedMeanSquare, BlockTiles, 5>(gated, affine, normed, p);
    @shared(|_block| NormParams::SCRATCH_BYTES)
    gated_residual_ada_norm_layer_same_block6<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<6>, Same, 8>(gated, affine, normed, p),
            [f32] => team::<T, LayerNorm, BlockRegisters<6>, Same, 4>(gated, affine, normed, p);
    @shared(|_block| NormParams::SCRATCH_BYTES)
    gated_residual_ada_norm_layer_f32_block10<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<10>, F32, 6>(gated, affine, normed, p);
    @shared(|_block| NormParams::SCRATCH_BYTES + p.staged_bytes::<T>(1))
    gated_residual_ada_norm_rms_same_block4<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Same, 9>(gated, affine, normed, p),
            [f32] => team::<T, MeanSquare, BlockRegistersStaged<4>, Same, 5>(gated, affine, normed, p);
    @shared(|_block| NormParams::SCRATCH_BYTES + p.staged_bytes::<T>(1))
    gated_residual_ada_norm_rms_tabled_block4<T: [f16, bf16]>(gated: GatedResidualArg, affine: Affine, normed: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Tabled, 8>(gated, affine, normed, p),
            [f32] => team::<T, MeanSquare, BlockRegistersStaged<4>, Tabled, 5>(gated, affine, normed, p)
}
