//! `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last dimension. Weight and bias are
//! optional.
//!
//! torch uses a vectorized LayerNorm kernel if the number of columns is divisible by 4 and the rows are
//! aligned. In this case, the kernels of this file return the same bits as `torch.nn.LayerNorm`.
//!
//! The suffixes of kernel names have these meanings:
//!
//! - `_any` takes any layout.
//! - `_mixed` takes a weight and a bias of any dtypes.
//! - `_warp<n>` keeps a row of `n` tiles of 128 columns in the registers of one warp.
//! - `_block<n>` keeps a row of `4 n` tiles in the registers of the four warps of a block.
use cuda_std::prelude::*;
use cuda_std::vec4::{
    Access, BlockRegisters, Scalar, Vectorized, WarpRegisters, WholeTiles, is_any_length, is_block_shared,
    tiles_in_registers,
};

use crate::layout::operand_kind::OperandKind;
use crate::norm::affine::{Affine, AffineRow, DenseAffine, Norm, Parameters};
use crate::norm::io::Sink;
use crate::norm::mixed::MixedAffine;
use crate::norm::params::{NormParams, OperandForm, RowAccess};
use crate::norm::reduce::stats::Stats;
use crate::norm::reduce::warp::LayerNorm;
use crate::norm::row_context::RowContext;

/// Writes `y = norm(x) * weight + bias` in the pass after the reduction.
struct AffineSink<T, P, A> {
    affine: P,
    y: Vec4RowMut<T, A>,
}

impl<T: Elem, P: Parameters, A: Access> Sink<T> for AffineSink<T, P, A> {
    const GROUPED: bool = P::GROUPED;
    // The number of vec4s (four columns each) whose weight and bias are loaded together, 1 or 4. The number
    // is 4 unless the additional registers would reduce the number of blocks that fit on an SM.
    const PREFETCH: usize =
        if is_block_shared::<A>() || is_tight::<T, A>() && size_of::<P::Fetched>() > 16 { 1 } else { 4 };
    type Fetched = P::Fetched;
    const EMPTY: P::Fetched = P::EMPTY;

    #[inline(always)]
    fn fetch(&self, tile: u32) -> P::Fetched {
        self.affine.fetch(tile)
    }

    #[inline(always)]
    fn put(&self, stats: Stats, tile: u32, vec4: Vec4<T>, fetched: P::Fetched) {
        let (weight, bias) = self.affine.values(fetched);
        self.y.put(tile, Vec4::from_lanes(LayerNorm::apply(stats, vec4.lanes(), weight, bias)));
    }
}

/// Returns `true` for kernels in which a warp keeps a row of five tiles (128 columns each) of a 16-bit type
/// in registers. In these kernels, a thread has only 48 registers. The kernels therefore load f32 weights and
/// biases one vec4 (four columns) at a time. For a norm without weight and bias, there is no separate
/// instantiation of these kernels. They use the instantiation in which weight and bias are each optional.
const fn is_tight<T, A: Access>() -> bool {
    tiles_in_registers::<A>() == 5 && size_of::<T>() == 2
}

/// # Safety
/// The host checked that `x` and `y` hold `p.rows` rows of `p.cols` elements. Weight and bias each have one
/// row, and their fields `kind` state their element types. All operands allow the access type `A` (how many
/// elements one load reads). `y` overlaps no other operand. `p.form` describes the dtypes of the operands.
#[inline(always)]
unsafe fn layer_norm<T: Elem, A: Access>(x: Rows, affine: Affine, y: Rows, p: NormParams) {
    let Some(row) = RowContext::<T, A>::of_warp(p) else { return };
    // SAFETY: the kernel accesses only its operands. The host checked their shapes and alignment, and
    // `p.form` states their dtypes. No thread outside of the calling warp (or of its block, if four warps
    // share a row) writes row `row.at` of `y`.
    unsafe {
        let x = Vec4Row::<T, A>::of(&x, row.at, row.columns);
        if !is_block_shared::<A>() {
            thread::wait_for_earlier_launches(x.first());
        }
        let [weight, bias] =
            [&affine.weight, &affine.bias].map(|operand| operand.kind.is_not(OperandKind::ABSENT));
        let single = size_of::<T>() == 2 && p.form.is(OperandForm::F32);
        match (weight, bias) {
            _ if is_any_length::<A>() => run::<T, AffineRow<T, A>, A>(&row, x, affine, y),
            (false, false) if !is_tight::<T, A>() => run::<T, (), A>(&row, x, affine, y),
            (true, true) if single => run::<T, DenseAffine<f32, A, true>, A>(&row, x, affine, y),
            (true, true) => run::<T, DenseAffine<T, A, true>, A>(&row, x, affine, y),
            _ if single => run::<T, DenseAffine<f32, A, false>, A>(&row, x, affine, y),
            _ => run::<T, DenseAffine<T, A, false>, A>(&row, x, affine, y),
        }
    }
}

/// # Safety
/// The requirements of [`layer_norm`] apply. Weight and bias have the dtypes that the loader `P` expects.
#[inline(always)]
unsafe fn run<T: Elem, P: Parameters, A: Access>(
    row: &RowContext<T, A>,
    x: Vec4Row<T, A>,
    affine: Affine,
    y: Rows,
) {
    let columns = row.columns;
    // SAFETY: the loader `P` requires a weight and a bias with the dtypes that it expects. The caller passes
    // such operands. No other warp or block writes this row of `y`.
    let scale = unsafe {
        AffineSink { affine: P::of(&affine, columns), y: Vec4RowMut::<T, A>::of(&y, row.at, columns) }
    };
    row.run::<LayerNorm, _, _>(x, scale);
}

/// # Safety
/// The requirements of [`layer_norm`] apply, for the access type (how many elements one load reads) that
/// `p.access` specifies.
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, affine: Affine, y: Rows, p: NormParams) {
    thread::launch_bounds::<128, 6>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.access` to an access type (how many elements one load reads) that all
    // operands allow.
    unsafe {
        match p.access {
            RowAccess::WHOLE_TILES => layer_norm::<T, WholeTiles>(x, affine, y, p),
            RowAccess::VECTORIZED => layer_norm::<T, Vectorized>(x, affine, y, p),
            _ => layer_norm::<T, Scalar>(x, affine, y, p),
        }
    }
}

/// # Safety
/// The requirements of [`layer_norm`] apply, except that weight and bias may have any dtypes, which their
/// fields `kind` state. `p.access` specifies an access type that all operands allow.
#[inline(always)]
unsafe fn mixed<T: Elem>(x: Rows, affine: Affine, y: Rows, p: NormParams) {
    thread::launch_bounds::<128, 6>();
    // SAFETY: the host checked the shapes, dtypes and alignment of the operands.
    unsafe {
        match p.access {
            RowAccess::VECTORIZED => mixed_of::<T, Vectorized>(x, affine, y, p),
            _ => mixed_of::<T, Scalar>(x, affine, y, p),
        }
    }
}

/// # Safety
/// The requirements of [`mixed`] apply.
#[inline(always)]
unsafe fn mixed_of<T: Elem, A: Access>(x: Rows, affine: Affine, y: Rows, p: NormParams) {
    let Some(row) = RowContext::<T, A>::of_warp(p) else { return };
    // SAFETY: the kernel accesses only its operands, and the host checked their shapes and alignment.
    unsafe {
        let x = Vec4Row::<T, A>::of(&x, row.at, row.columns);
        run::<T, MixedAffine<A>, A>(&row, x, affine, y);
    }
}

/// # Safety
/// The requirements of [`layer_norm`] apply. The access type `A` fixes how many tiles (128 columns each) of a
/// row stay in registers. A row has exactly this number of tiles.
#[inline(always)]
unsafe fn in_registers<T: Elem, A: Access, const MIN_BLOCKS: u32>(
    x: Rows,
    affine: Affine,
    y: Rows,
    p: NormParams,
) {
    // A Turing SM runs at most 1024 threads, fewer than a newer SM, but both have the same number of
    // registers. For Turing, the launch bounds therefore require at most 4 blocks per SM, so that each thread
    // can use more registers than on newer GPUs.
    thread::launch_bounds_by_generation::<64, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The access type `A` (how a thread reads rows) fixes how many tiles (128 columns each) of a
    // row stay in registers. A row has exactly this number of tiles.
    unsafe { layer_norm::<T, A>(x, affine, y, p) }
}

/// # Safety
/// The requirements of [`layer_norm`] apply. The access type `A` (how a thread reads rows) fixes how many
/// tiles (128 columns each) stay in the registers of each warp. A row has four times this number of tiles,
/// because the four warps of a block share the row.
#[inline(always)]
unsafe fn of_block<T: Elem, A: Access, const TURING: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    affine: Affine,
    y: Rows,
    p: NormParams,
) {
    // A Turing SM runs at most 1024 threads, fewer than a newer SM, but both have the same number of
    // registers. For Turing, the launch bounds therefore require at most 4 blocks per SM, so that each thread
    // can use more registers.
    thread::launch_bounds_by_generation::<{ NormParams::SHARING }, TURING, MIN_BLOCKS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. A row has exactly the number of tiles (128 columns each) that the block keeps in registers.
    unsafe { layer_norm::<T, A>(x, affine, y, p) }
}

entry! {
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    layer_norm_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Rows, p: NormParams) => any_layout::<T>(x, affine, y, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    layer_norm_mixed_any<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Rows, p: NormParams)
        => mixed::<T>(x, affine, y, p);
    layer_norm_warp5<T: [f16, bf16]>(x: Rows, affine: Affine, y: Rows, p: NormParams)
        => in_registers::<T, WarpRegisters<5>, 20>(x, affine, y, p),
            [f32] => in_registers::<T, WarpRegisters<5>, 10>(x, affine, y, p);
    @overlap(Before) layer_norm_warp10<T: [f16, bf16]>(x: Rows, affine: Affine, y: Rows, p: NormParams)
        => in_registers::<T, WarpRegisters<10>, 12>(x, affine, y, p),
            [f32] => in_registers::<T, WarpRegisters<10>, 8>(x, affine, y, p);
    @shared(|_block| NormParams::SCRATCH_BYTES)
    layer_norm_block6<T: [f16, bf16]>(x: Rows, affine: Affine, y: Rows, p: NormParams)
        => of_block::<T, BlockRegisters<6>, 4, 10>(x, affine, y, p),
            [f32] => of_block::<T, BlockRegisters<6>, 4, 5>(x, affine, y, p);
    @shared(|_block| NormParams::SCRATCH_BYTES)
    layer_norm_block8<T: [f16, bf16]>(x: Rows, affine: Affine, y: Rows, p: NormParams)
        => of_block::<T, BlockRegisters<8>, 4, 8>(x, affine, y, p),
            [f32] => of_block::<T, BlockRegisters<8>, 4, 6>(x, affine, y, p);
    @shared(|_block| NormParams::SCRATCH_BYTES)
    layer_norm_block10<T: [f16, bf16]>(x: Rows, affine: Affine, y: Rows, p: NormParams)
        => of_block::<T, BlockRegisters<10>, 4, 8>(x, affine, y, p),
            [f32] => of_block::<T, BlockRegisters<10>, 3, 3>(x, affine, y, p)
}
