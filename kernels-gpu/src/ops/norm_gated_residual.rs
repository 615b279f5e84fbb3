//! `out = x + gate * norm(y)`: the output `y` of attention or of the MLP is normalised, gated, and added to
//! the residual stream `x`. The norm is a LayerNorm or an RMSNorm, with or without weight and bias. Without a
//! gate, `out = x + norm(y)`.
//!
//! In Z-Image, Lumina 2 and Ideogram 4, the gate is `tanh` of a modulation.
//!
//! `layer`, `rms` and `fused_rms` in the name of a kernel say which norm it computes, as for
//! [`ada_norm`](super::ada_norm). The suffixes of kernel names have these meanings:
//!
//! - `_any` takes any layout, operands of any dtypes, and a gate with one column.
//! - `_smem1` needs rows of whole tiles of 128 columns, and operands of one of the
//!   [forms](crate::norm::params::OperandForm) with a constant dtype. Each warp reduces a row, and then
//!   computes the output from a copy of the row in shared memory.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::{Access, Scalar, Vectorized, WholeTiles};

use crate::norm::affine::{Affine, Norm, Parameters};
use crate::norm::known_form::{Formed, RoundEach, in_form};
use crate::norm::normed_branch::{AddBranch, MixedAddBranch, NormedBranch};
use crate::norm::operand_forms::ModulationSource;
use crate::norm::params::{NormParams, RowAccess};
use crate::norm::reduce::warp::{FusedMeanSquare, LayerNorm, MeanSquare};
use crate::norm::row_context::RowContext;

/// Reduces a row of `y` and writes `x + gate * norm(y)`. This code is compiled once for each form, which
/// states the dtypes of the operands.
struct Passes<T, N, A> {
    row: RowContext<T, A>,
    branch: NormedBranch,
    affine: Affine,
    norm: PhantomData<N>,
}

impl<T: Elem, N: Norm, A: Access> Formed<T, A> for Passes<T, N, A> {
    #[inline(always)]
    unsafe fn run<F: ModulationSource<T>, P: Parameters, R: RoundEach>(self, rounds: R) {
        let Self { row, branch, affine, .. } = self;
        // SAFETY: the caller passes operands with the dtypes that the loaders `F` and `P` expect. Only the
        // calling warp writes row `row.at` of the output.
        unsafe {
            let source = Vec4Row::<T, A>::of(&branch.y, row.at, row.columns);
            let sink = AddBranch::<T, N, F, P, R, A>::of(&branch, &affine, &row, rounds);
            row.run::<N, _, _>(source, sink);
        }
    }
}

/// # Safety
/// The host checked that `x`, `y` and `out` hold `p.rows` rows of `p.cols` elements of type `T`. These rows
/// consist of whole tiles (128 columns each). The gate broadcasts to these rows. Weight and bias have one row
/// each. `p.form` states the dtypes of gate, weight and bias. The output overlaps no other operand.
#[inline(always)]
unsafe fn whole<T: Elem, N: Norm>(branch: NormedBranch, affine: Affine, p: NormParams) {
    thread::launch_bounds::<128, 4>();
    let Some(row) = RowContext::<T, WholeTiles>::of_warp(p) else { return };
    // SAFETY: the kernel accesses only its operands. The host checked their shapes and alignment, and
    // `p.form` states their dtypes.
    unsafe { in_form::<T, 1, WholeTiles>(Passes::<T, N, _> { row, branch, affine, norm: PhantomData }, p) }
}

/// # Safety
/// The requirements of [`whole`] apply, except that the rows have any length, and all operands except `y` may
/// have any dtype. Their fields `kind` and `branch.stream` state these dtypes. All operands allow the access
/// type that `p.access` specifies.
#[inline(always)]
unsafe fn any_layout<T: Elem, N: Norm>(branch: NormedBranch, affine: Affine, p: NormParams) {
    thread::launch_bounds::<128, 4>();
    // SAFETY: the host checked the shapes, dtypes and alignment of the operands.
    unsafe {
        match p.access {
            RowAccess::VECTORIZED => mixed::<T, N, Vectorized>(branch, affine, p),
            _ => mixed::<T, N, Scalar>(branch, affine, p),
        }
    }
}

/// # Safety
/// The requirements of [`any_layout`] apply.
#[inline(always)]
unsafe fn mixed<T: Elem, N: Norm, A: Access>(branch: NormedBranch, affine: Affine, p: NormParams) {
    let Some(row) = RowContext::<T, A>::of_warp(p) else { return };
    // SAFETY: the kernel accesses only its operands. The host checked their shapes and alignment, and the
    // kinds state their dtypes. No other warp writes row `row.at` of the output.
    unsafe {
        let source = Vec4Row::<T, A>::of(&branch.y, row.at, row.columns);
        row.run::<N, _, _>(source, MixedAddBranch::<T, N, A>::of(&branch, &affine, &row));
    }
}

entry! {
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    norm_gated_residual_layer_any<T: [f32, f16, bf16]>(branch: NormedBranch, affine: Affine, p: NormParams)
        => any_layout::<T, LayerNorm>(branch, affine, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    norm_gated_residual_rms_any<T: [f32, f16, bf16]>(branch: NormedBranch, affine: Affine, p: NormParams)
        => any_layout::<T, MeanSquare>(branch, affine, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    norm_gated_residual_fused_rms_any<T: [f32, f16, bf16]>(branch: NormedBranch, affine: Affine, p: NormParams)
        => any_layout::<T, FusedMeanSquare>(branch, affine, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    norm_gated_residual_layer_smem1<T: [f32, f16, bf16]>(branch: NormedBranch, affine: Affine, p: NormParams)
        => whole::<T, LayerNorm>(branch, affine, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    norm_gated_residual_rms_smem1<T: [f32, f16, bf16]>(branch: NormedBranch, affine: Affine, p: NormParams)
        => whole::<T, MeanSquare>(branch, affine, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    norm_gated_residual_fused_rms_smem1<T: [f32, f16, bf16]>(branch: NormedBranch, affine: Affine, p: NormParams)
        => whole::<T, FusedMeanSquare>(branch, affine, p)
}
