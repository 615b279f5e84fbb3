//! The kernels: a row in the registers of its team, or read again for each pass.
use cuda_std::prelude::*;

use super::block_sums::{BlockRows, SharedSums, SumsRow};
use super::params::{NormBackwardParams, Operands, PartialSums};
use super::row_pass::{LaneSums, RowBuffer, RowMoments, TeamReduction};
use super::{multi_row, prefetch};
use crate::layout::operand_kind::OperandKind;
use crate::rms::weight::Weight;

/// The gradients of the rows that the block takes: a row stays in `IN_REGISTERS` tiles, or is read again for
/// each pass.
///
/// # Safety
/// The host checked that `dy`, `x` and `dx`, and `dsum` where it is, hold `p.rows` rows of `p.cols` elements
/// for each group, the weight a row of `p.cols` for each group, of the type that its kind says, and the sums
/// one of f32 for each block; all `Rows::is_vector` if `VECTOR`; and that what is written overlaps nothing
/// else.
#[inline(always)]
pub(crate) unsafe fn norm_backward<
    T: Elem,
    const IN_REGISTERS: usize,
    const VECTOR: bool,
    const LAYER: bool,
>(
    operands: Operands,
    weight: Weight,
    sums: PartialSums,
    p: NormBackwardParams,
) {
    let block_rows = BlockRows::of_block(p.rows);
    let of_kind = |kind| Weight { kind, ..weight };
    // SAFETY: as the caller promises.
    unsafe {
        match weight.kind {
            _ if IN_REGISTERS == 0 && VECTOR => {
                streamed::<T, 4, VECTOR, LAYER>(&block_rows, operands, weight, sums, p)
            }
            _ if IN_REGISTERS == 0 => streamed::<T, 1, VECTOR, LAYER>(&block_rows, operands, weight, sums, p),
            // One body for all kinds, where speed is not decided by it.
            _ if !VECTOR => {
                in_registers::<T, IN_REGISTERS, VECTOR, LAYER>(&block_rows, operands, weight, sums, p)
            }
            OperandKind::ABSENT => in_registers::<T, IN_REGISTERS, VECTOR, LAYER>(
                &block_rows,
                operands,
                of_kind(OperandKind::ABSENT),
                sums,
                p,
            ),
            OperandKind::SAME => in_registers::<T, IN_REGISTERS, VECTOR, LAYER>(
                &block_rows,
                operands,
                of_kind(OperandKind::SAME),
                sums,
                p,
            ),
            // For f32 the two kinds are one, and the host says `SAME`.
            _ if size_of::<T>() == 4 => {}
            _ => in_registers::<T, IN_REGISTERS, VECTOR, LAYER>(
                &block_rows,
                operands,
                of_kind(OperandKind::F32),
                sums,
                p,
            ),
        }
    }
}

/// The rows of the block, each in the registers of a team, where its columns' sums stay too.
///
/// # Safety
/// As [`norm_backward`].
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool, const LAYER: bool>(
    block_rows: &BlockRows,
    operands: Operands,
    weight: Weight,
    sums: PartialSums,
    p: NormBackwardParams,
) {
    let mut reduction = TeamReduction::of(block_rows.team);
    let mut memory = TeamReduction::after_rows();
    let mut dweight = [T::F32Vec::splat(0.0); IN_REGISTERS];
    // Two sums for each column are more than there are registers for.
    let dbias = SharedSums::take(&mut memory, if LAYER { IN_REGISTERS as u32 } else { 0 }, T::F32Vec::LEN);
    let mut first = block_rows.first;
    while first < block_rows.end {
        let at = block_rows.at(first, p.inner);
        // SAFETY: as the caller promises; a team's row is its own.
        let (buffer, _) = unsafe { RowBuffer::<T, VECTOR, LAYER>::of(block_rows, &operands, weight, at, &p) };
        let pairs = buffer.load::<IN_REGISTERS>(0);
        let [mut mean, mut offset] = [0.0; 2];
        if LAYER {
            let mut sum = LaneSums::ZERO;
            for tile in 0..IN_REGISTERS {
                sum = buffer.means(tile as u32, pairs[tile], sum);
            }
            [mean, offset] = reduction.means(sum, p.inv_cols);
        }
        let mut sum = LaneSums::ZERO;
        for tile in 0..IN_REGISTERS {
            sum = buffer.products(tile as u32, pairs[tile], mean, sum);
        }
        if VECTOR {
            let next = [(first + block_rows.step) as u32, thread::block_dim()[1], block_rows.end as u32];
            // SAFETY: as the caller promises.
            unsafe { prefetch::prefetch::<T>(&operands, next, &p) };
        }
        let stats = RowMoments::of(mean, offset, reduction.means(sum, p.inv_cols), p.eps, at);
        // Addresses that are worked out anew are not in the way of the reductions.
        // SAFETY: as above.
        let (buffer, dx) =
            unsafe { RowBuffer::<T, VECTOR, LAYER>::of(block_rows, &operands, weight, at, &p) };
        let dbias = dbias.opaque();
        for tile in 0..IN_REGISTERS {
            let [dy, d] = buffer.lanes(pairs[tile], stats);
            if LAYER {
                dbias.add(tile as u32, dy);
            }
            let xhat = d.map(|d| d * stats.inv_rms);
            dweight[tile] = T::F32Vec::from_fn(|i| fma(dy.get(i), xhat.get(i), dweight[tile].get(i)));
            let pack = buffer.dx(tile as u32, [dy, d], stats);
            dx.store(tile as u32, pack, Store::Default);
        }
        first += block_rows.step;
    }
    // SAFETY: as the caller promises.
    let (dweight_row, dbias_row) = unsafe {
        (
            SumsRow::<VECTOR>::of(sums.dweight, block_rows, p.cols),
            SumsRow::<VECTOR>::of(sums.dbias, block_rows, p.cols),
        )
    };
    let memory = memory.take(thread::block_dim()[0] * thread::block_dim()[1] * T::F32Vec::LEN);
    let dbias = dbias.opaque();
    for tile in 0..IN_REGISTERS {
        dweight_row.write_over_teams(tile as u32, dweight[tile], block_rows.team, memory);
        if LAYER {
            dbias_row.write_over_teams(
                tile as u32,
                dbias.get::<T::F32Vec>(tile as u32),
                block_rows.team,
                memory,
            );
        }
    }
}

/// The rows of the block, read again for each pass, `STEP` tiles in flight; their columns' sums stay in the
/// workspace.
///
/// # Safety
/// As [`norm_backward`], in blocks of one team.
#[inline(always)]
unsafe fn streamed<T: Elem, const STEP: usize, const VECTOR: bool, const LAYER: bool>(
    block_rows: &BlockRows,
    operands: Operands,
    weight: Weight,
    sums: PartialSums,
    p: NormBackwardParams,
) {
    let mut reduction = TeamReduction::of(block_rows.team);
    // SAFETY: as the caller promises.
    let (dweight, dbias) = unsafe {
        (
            SumsRow::<VECTOR>::of(sums.dweight, block_rows, p.cols),
            SumsRow::<VECTOR>::of(sums.dbias, block_rows, p.cols),
        )
    };
    let mut first = block_rows.first;
    while first < block_rows.end {
        let at = block_rows.at(first, p.inner);
        // SAFETY: as the caller promises; a team's row is its own.
        let (buffer, dx) =
            unsafe { RowBuffer::<T, VECTOR, LAYER>::of(block_rows, &operands, weight, at, &p) };
        let steps = p.cols.div_ceil(block_rows.team.size * T::F32Vec::LEN).div_ceil(STEP as u32);
        let [mut mean, mut offset] = [0.0; 2];
        if LAYER {
            let mut sum = LaneSums::ZERO;
            for step in 0..steps {
                let pairs = buffer.load::<STEP>(step * STEP as u32);
                for i in 0..STEP {
                    sum = buffer.means(step * STEP as u32 + i as u32, pairs[i], sum);
                }
            }
            [mean, offset] = reduction.means(sum, p.inv_cols);
        }
        let mut sum = LaneSums::ZERO;
        for step in 0..steps {
            let pairs = buffer.load::<STEP>(step * STEP as u32);
            for i in 0..STEP {
                sum = buffer.products(step * STEP as u32 + i as u32, pairs[i], mean, sum);
            }
        }
        let stats = RowMoments::of(mean, offset, reduction.means(sum, p.inv_cols), p.eps, at);
        // Backwards: what was read last is nearest.
        for step in (0..steps).rev() {
            let pairs = buffer.load::<STEP>(step * STEP as u32);
            for i in 0..STEP {
                let tile = step * STEP as u32 + i as u32;
                let [dy, d] = buffer.lanes(pairs[i], stats);
                dx.store(tile, buffer.dx(tile, [dy, d], stats), Store::Default);
                dweight.add(tile, dy.zip(d, |dy, d| dy * (d * stats.inv_rms)), first == block_rows.first);
                if LAYER {
                    dbias.add(tile, dy, first == block_rows.first);
                }
            }
        }
        first += block_rows.step;
    }
}

/// The same of LayerNorm, `ROWS` at a time of rows that fill `IN_REGISTERS` packs of each thread: see
/// [`multi_row`](multi_row::beside). One at a time where there is a `dsum`, for which there are no registers
/// else.
///
/// # Safety
/// As [`multi_row`](multi_row::beside).
#[inline(always)]
pub(crate) unsafe fn norm_backward_multi_row<T: Elem, const IN_REGISTERS: usize, const ROWS: usize>(
    operands: Operands,
    weight: Weight,
    sums: PartialSums,
    p: NormBackwardParams,
) {
    // SAFETY: as the caller promises.
    unsafe {
        if operands.dsum.base.is_null() {
            multi_row::multi_row::<T, IN_REGISTERS, ROWS, false>(operands, weight, sums, p)
        } else {
            multi_row::multi_row::<T, IN_REGISTERS, 1, true>(operands, weight, sums, p)
        }
    }
}
