//! `y = norm(x) * (1 + scale) + shift`: LayerNorm or RMSNorm with the modulation (scale and shift) of a
//! diffusion transformer, in one kernel. Kernels with `pair` in their names have a second output, for which
//! they apply a second scale and shift to the same normalized row.
//!
//! `scale` and `shift` each have one row for the whole tensor, one row per batch, or one row per token. Each
//! of them may be a sum `table + value`, such as `scale_shift_table + temb` in diffusers models.
//!
//! `layer`, `rms` and `fused_rms` in the name of a kernel say which norm it computes. `fused_rms` has the
//! roundings and the order of summation of `torch.nn.RMSNorm`, and `rms` those of diffusers' `RMSNorm`.
//!
//! The suffixes of kernel names have these meanings:
//!
//! - `_any` takes any layout.
//! - `_smem1` needs rows of whole tiles of 128 columns. Each warp reduces a row, and then computes the output
//!   from a copy of the row in shared memory.
//! - `_warp<n>` keeps a row of `n` tiles in the registers of one warp.
//! - `_block<n>` keeps a row of `4 n` tiles in the registers of the four warps of a block.
//! - `_mixed` takes operands of any dtypes, with one column, or chosen by an index: see
//!   [`norm::mixed`](crate::norm::mixed).
//! - `_same`, `_f32`, `_tabled` and `_affine` are each compiled for one combination of operand dtypes: see
//!   [`OperandForm`](crate::norm::params::OperandForm).
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::{
    Access, BlockRegisters, BlockRegistersStaged, Scalar, Vectorized, WarpRegisters, WholeTiles,
};

use crate::norm::affine::{Affine, Modulated, Norm, Parameters};
use crate::norm::known_form::{Formed, RoundEach, in_form};
use crate::norm::mixed::{Mixed, MixedAffine, MixedModulationRow};
use crate::norm::modulation::ModulatedNorm;
use crate::norm::operand_forms::ModulationSource;
use crate::norm::params::{F32, KnownForm, NormParams, RowAccess, Same, Tabled, WithAffine};
use crate::norm::reduce::warp::{FusedMeanSquare, LayerNorm, MeanSquare};
use crate::norm::row_context::RowContext;

/// Reduces a row and writes `norm(x) * (1 + scale) + shift`. This code is compiled once for each form, which
/// states the dtypes of the operands and whether a table is added to them.
struct AdaNormPasses<T, N, const OUTPUTS: usize, A> {
    row: RowContext<T, A>,
    normed: ModulatedNorm<N, Vec4Row<T, A>, OUTPUTS>,
}

impl<T: Elem, N: Norm, const OUTPUTS: usize, A: Access> Formed<T, A> for AdaNormPasses<T, N, OUTPUTS, A> {
    #[inline(always)]
    unsafe fn run<F: ModulationSource<T>, P: Parameters, R: RoundEach>(self, rounds: R) {
        // SAFETY: `run` requires operands with the dtypes that the loaders `F` and `P` expect. The caller
        // passes such operands.
        unsafe { self.normed.run::<T, F, P, R, A>(&self.row, rounds) }
    }
}

/// # Safety
/// The host checked these facts:
///
/// - `x` and each `y` hold `p.rows` rows of `p.cols` elements. No `y` overlaps another operand.
/// - Scales and shifts broadcast to the shape of `x`, and their fields `kind` state their element types.
///   Weight and bias have one row each, and so have the tables that are added to scale and shift.
/// - All operands allow the access type `A` (how many elements one load reads), and `p.form` states their
///   dtypes.
#[inline(always)]
unsafe fn ada_norm<T: Elem, N: Norm, const OUTPUTS: usize, A: Access>(
    x: Rows,
    affine: Affine,
    outputs: [Modulated; OUTPUTS],
    p: NormParams,
) {
    let Some(row) = RowContext::<T, A>::of_warp(p) else { return };
    // SAFETY: the kernel accesses only its operands. The host checked their shapes and alignment, and
    // `p.form` states their dtypes. No thread outside of the calling warp (or of its block, if four warps
    // share a row) writes row `row.at` of the outputs.
    unsafe {
        let source = Vec4Row::<T, A>::of(&x, row.at, row.columns);
        let normed = ModulatedNorm::<N, _, OUTPUTS> { source, affine, outputs, norm: PhantomData };
        in_form::<T, OUTPUTS, A>(AdaNormPasses { row, normed }, p);
    }
}

/// # Safety
/// The requirements of [`ada_norm`] apply, for the access type (how many elements one load reads) that
/// `p.access` specifies.
#[inline(always)]
unsafe fn any_layout<T: Elem, N: Norm, const OUTPUTS: usize>(
    x: Rows,
    affine: Affine,
    outputs: [Modulated; OUTPUTS],
    p: NormParams,
) {
    thread::launch_bounds::<128, 4>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.access` to an access type (how many elements one load reads) that all
    // operands allow.
    unsafe {
        match p.access {
            RowAccess::VECTORIZED => ada_norm::<T, N, OUTPUTS, Vectorized>(x, affine, outputs, p),
            _ => ada_norm::<T, N, OUTPUTS, Scalar>(x, affine, outputs, p),
        }
    }
}

/// # Safety
/// The requirements of [`ada_norm`] apply. The access type `A` (how a thread reads rows) fixes how many tiles
/// (128 columns each) of a row stay in registers. A row has exactly this number of tiles. The operands have
/// the dtypes for which the type `F` specializes the kernel.
#[inline(always)]
unsafe fn in_registers<T: Elem, N: Norm, A: Access, F: KnownForm, const MIN_BLOCKS: u32>(
    x: Rows,
    affine: Affine,
    y: Modulated,
    p: NormParams,
) {
    // A Turing SM runs at most 1024 threads, fewer than a newer SM, but both have the same number of
    // registers. For Turing, the launch bounds therefore require only 4 blocks per SM, so that each thread
    // can use more registers.
    thread::launch_bounds_by_generation::<64, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The operands have the dtypes for which the type `F` specializes the kernel.
    unsafe { ada_norm::<T, N, 1, A>(x, affine, [y], p.of_form::<F>()) }
}

/// # Safety
/// The requirements of [`ada_norm`] apply. The access type `A` (how a thread reads rows) fixes how many tiles
/// (128 columns each) stay in the registers of each warp. A row has four times this number of tiles, because
/// the four warps of a block share the row. The operands have the dtypes for which the type `F` specializes
/// the kernel.
#[inline(always)]
unsafe fn team<T: Elem, N: Norm, A: Access, F: KnownForm, const MIN_BLOCKS: u32>(
    x: Rows,
    affine: Affine,
    y: Modulated,
    p: NormParams,
) {
    // A Turing SM runs at most 1024 threads, fewer than a newer SM, but both have the same number of
    // registers. For Turing, the launch bounds therefore require only 4 blocks per SM, so that each thread
    // can use more registers.
    thread::launch_bounds_by_generation::<128, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The operands have the dtypes for which the type `F` specializes the kernel.
    unsafe { ada_norm::<T, N, 1, A>(x, affine, [y], p.of_form::<F>()) }
}

/// # Safety
/// The requirements of [`ada_norm`] apply. All rows consist of whole tiles (128 columns each).
#[inline(always)]
unsafe fn whole<T: Elem, N: Norm, const OUTPUTS: usize, const AMPERE: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    affine: Affine,
    outputs: [Modulated; OUTPUTS],
    p: NormParams,
) {
    thread::launch_bounds_by_generation::<128, MIN_BLOCKS, AMPERE, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. Their rows consist of whole tiles (128 columns each).
    unsafe { ada_norm::<T, N, OUTPUTS, WholeTiles>(x, affine, outputs, p) }
}

/// # Safety
/// The requirements of [`ada_norm`] apply, except that the operands may have any dtypes, which their fields
/// `kind` state. If `mixed.index` is not null, it has an integer for each row, and scale and shift have
/// `mixed.index_rows` rows. All operands allow the access type that `p.access` specifies.
#[inline(always)]
unsafe fn mixed<T: Elem, N: Norm>(x: Rows, affine: Affine, y: Modulated, mixed: Mixed, p: NormParams) {
    thread::launch_bounds::<128, 4>();
    // SAFETY: the host checked the shapes, dtypes and alignment of the operands.
    unsafe {
        match p.access {
            RowAccess::VECTORIZED => mixed_of::<T, N, Vectorized>(x, affine, y, mixed, p),
            _ => mixed_of::<T, N, Scalar>(x, affine, y, mixed, p),
        }
    }
}

/// # Safety
/// The requirements of [`mixed`] apply.
#[inline(always)]
unsafe fn mixed_of<T: Elem, N: Norm, A: Access>(
    x: Rows,
    affine: Affine,
    y: Modulated,
    mixed: Mixed,
    p: NormParams,
) {
    let Some(row) = RowContext::<T, A>::of_warp(p) else { return };
    // SAFETY: the kernel accesses only its operands. The host checked their shapes and alignment, and the
    // fields `kind` state their dtypes. No other warp writes row `row.at` of the output.
    unsafe {
        let source = Vec4Row::<T, A>::of(&x, row.at, row.columns);
        let normed = ModulatedNorm::<N, _, 1> { source, affine, outputs: [y], norm: PhantomData };
        let by_row = mixed.row_of(row.at);
        normed.run_by::<T, MixedModulationRow<A>, MixedAffine<A>, _, A>(&row, by_row, p.round_each != 0);
    }
}

/// Minimum number of blocks (128 threads each) per SM, for `_smem1` kernels of 16-bit types with one output.
/// With 5 blocks, a thread can use 96 registers, which is enough for these kernels. There is one exception:
/// the LayerNorm kernels for sm_80 need 97 registers, so their minimum is 4 blocks.
const BLOCKS: u32 = 5;

entry! {
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_layer_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => any_layout::<T, LayerNorm, 1>(x, affine, [y], p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_rms_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => any_layout::<T, MeanSquare, 1>(x, affine, [y], p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_fused_rms_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => any_layout::<T, FusedMeanSquare, 1>(x, affine, [y], p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_pair_layer_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: NormParams)
        => any_layout::<T, LayerNorm, 2>(x, affine, [y, y2], p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_pair_rms_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: NormParams)
        => any_layout::<T, MeanSquare, 2>(x, affine, [y, y2], p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_pair_fused_rms_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: NormParams)
        => any_layout::<T, FusedMeanSquare, 2>(x, affine, [y, y2], p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_layer_mixed_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, operands: Mixed, p: NormParams)
        => mixed::<T, LayerNorm>(x, affine, y, operands, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_rms_mixed_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, operands: Mixed, p: NormParams)
        => mixed::<T, MeanSquare>(x, affine, y, operands, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_fused_rms_mixed_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, operands: Mixed, p: NormParams)
        => mixed::<T, FusedMeanSquare>(x, affine, y, operands, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_layer_smem1<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => whole::<T, LayerNorm, 1, 4, BLOCKS>(x, affine, [y], p),
            [f32] => whole::<T, LayerNorm, 1, 4, 4>(x, affine, [y], p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_rms_smem1<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => whole::<T, MeanSquare, 1, BLOCKS, BLOCKS>(x, affine, [y], p),
            [f32] => whole::<T, MeanSquare, 1, 4, 4>(x, affine, [y], p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_fused_rms_smem1<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => whole::<T, FusedMeanSquare, 1, BLOCKS, BLOCKS>(x, affine, [y], p),
            [f32] => whole::<T, FusedMeanSquare, 1, 4, 4>(x, affine, [y], p);
    ada_norm_layer_same_warp12<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => in_registers::<T, LayerNorm, WarpRegisters<12>, Same, 12>(x, affine, y, p),
            [f32] => in_registers::<T, LayerNorm, WarpRegisters<12>, Same, 6>(x, affine, y, p);
    ada_norm_layer_f32_warp12<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => in_registers::<T, LayerNorm, WarpRegisters<12>, F32, 10>(x, affine, y, p);
    @shared(|_block| NormParams::SCRATCH_BYTES)
    ada_norm_layer_same_block6<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<6>, Same, 9>(x, affine, y, p),
            [f32] => team::<T, LayerNorm, BlockRegisters<6>, Same, 5>(x, affine, y, p);
    @shared(|_block| NormParams::SCRATCH_BYTES)
    ada_norm_layer_affine_block6<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<6>, WithAffine, 10>(x, affine, y, p);
    @shared(|_block| NormParams::SCRATCH_BYTES)
    ada_norm_layer_f32_block10<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, LayerNorm, BlockRegisters<10>, F32, 8>(x, affine, y, p);
    @shared(|_block| NormParams::SCRATCH_BYTES + p.staged_bytes::<T>(1))
    ada_norm_rms_same_block4<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Same, 12>(x, affine, y, p),
            [f32] => team::<T, MeanSquare, BlockRegistersStaged<4>, Same, 7>(x, affine, y, p);
    @shared(|_block| NormParams::SCRATCH_BYTES + p.staged_bytes::<T>(1))
    ada_norm_rms_tabled_block4<T: [f16, bf16]>(x: Rows, affine: Affine, y: Modulated, p: NormParams)
        => team::<T, MeanSquare, BlockRegistersStaged<4>, Tabled, 10>(x, affine, y, p),
            [f32] => team::<T, MeanSquare, BlockRegistersStaged<4>, Tabled, 7>(x, affine, y, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_pair_layer_smem1<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: NormParams)
        => whole::<T, LayerNorm, 2, 4, 4>(x, affine, [y, y2], p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    ada_norm_pair_rms_smem1<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Modulated, y2: Modulated, p: NormParams)
        => whole::<T, MeanSquare, 2, 4, 4>(x, affine, [y, y2], p)
}
