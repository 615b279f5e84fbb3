//! The bodies of the backward kernels of LayerNorm and RMSNorm. Some kernels keep each row in the registers
//! of its team (the threads that share the row). The other kernels load each row again for each pass over the
//! row.
use cuda_std::prelude::*;

use super::block_sums::{BlockRows, SharedSums, SumsRow};
use super::params::{NormBackwardParams, Operands, PartialSums};
use super::row_pass::{LaneSums, RowBuffer, RowMoments, TeamReduction};
use super::{multi_row, prefetch};
use crate::layout::operand_kind::OperandKind;
use crate::rms::weight::Weight;

/// Computes `dx` for the rows of this block, and partial sums for `dw` and `db` (the gradients of weight and
/// bias).
///
/// If `IN_REGISTERS` is not 0, each row stays in registers, with `IN_REGISTERS` packs (16 bytes each) per
/// thread. If `IN_REGISTERS` is 0, the kernel loads a row again for each pass over the row. `LAYER` is true
/// for LayerNorm and false for RMSNorm.
///
/// # Safety
/// The host checked that:
///
/// - `dy`, `x`, `dx`, and `dsum` if present, have `p.rows` rows of `p.cols` elements for each group (rows
///   that share a weight);
/// - `weight` has one row of `p.cols` elements for each group, of the type in `weight.kind`;
/// - each workspace of `sums` that is not null has one row of `p.cols` f32 for each block;
/// - if `VECTOR` is true, all operands allow 16-byte accesses (`Rows::is_vector`);
/// - outputs do not overlap any other operand.
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
    // SAFETY: the function accesses the operands, which the host checked. It also requires the kind (element
    // type) of the weight, and each branch passes the kind that the weight has.
    unsafe {
        match weight.kind {
            _ if IN_REGISTERS == 0 && VECTOR => {
                streamed::<T, 4, VECTOR, LAYER>(&block_rows, operands, weight, sums, p)
            }
            _ if IN_REGISTERS == 0 => streamed::<T, 1, VECTOR, LAYER>(&block_rows, operands, weight, sums, p),
            // If `VECTOR` is false, the kernel tests the type of the weight at run time, because this test is
            // not what limits its speed.
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
            // If `T` is f32, the host passes `OperandKind::SAME` for an f32 weight, so this arm is never
            // executed.
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

/// Computes [`norm_backward`] with each row in the registers of its team (the threads that share the row).
/// The partial sums of `dw` (gradient of the weight) are in registers, too. The partial sums of `db`
/// (gradient of the bias) are in shared memory.
///
/// # Safety
/// The requirements of [`norm_backward`] apply.
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
    // The partial sums of `db` (gradient of the bias) are in shared memory. Registers have space only for the
    // partial sums of `dw`.
    let dbias = SharedSums::take(&mut memory, if LAYER { IN_REGISTERS as u32 } else { 0 }, T::F32Vec::LEN);
    let mut first = block_rows.first;
    while first < block_rows.end {
        let at = block_rows.at(first, p.inner);
        // SAFETY: the buffer reads row `at` of the operands. The host checked that the operands contain this
        // row.
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
            // SAFETY: the function accesses the operands, which the host checked. They allow 16-byte
            // accesses, because `VECTOR` is true.
            unsafe { prefetch::prefetch::<T>(&operands, next, &p) };
        }
        let stats = RowMoments::of(mean, offset, reduction.means(sum, p.inv_cols), p.eps, at);
        // Compute the addresses of the row again. If the kernel kept the addresses from above, they would
        // occupy registers during the reductions.
        // SAFETY: the code accesses row `at` of the operands. The host checked that the operands contain this
        // row. No other team (threads that share a row) writes the `dx` of this row.
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
    // SAFETY: the code writes this block's row of each workspace. The host checked that each workspace is
    // null or has a row of `p.cols` f32 for each block.
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

/// Computes [`norm_backward`] without rows in registers. Each pass over a row loads the row again, `STEP`
/// tiles at a time. A tile has 16 bytes per thread. The block accumulates its partial sums in the workspaces
/// in global memory.
///
/// # Safety
/// The requirements of [`norm_backward`] apply. All threads of a block share one row.
#[inline(always)]
unsafe fn streamed<T: Elem, const STEP: usize, const VECTOR: bool, const LAYER: bool>(
    block_rows: &BlockRows,
    operands: Operands,
    weight: Weight,
    sums: PartialSums,
    p: NormBackwardParams,
) {
    let mut reduction = TeamReduction::of(block_rows.team);
    // SAFETY: the code accesses this block's row of each workspace. The host checked that each workspace is
    // null or has a row of `p.cols` f32 for each block.
    let (dweight, dbias) = unsafe {
        (
            SumsRow::<VECTOR>::of(sums.dweight, block_rows, p.cols),
            SumsRow::<VECTOR>::of(sums.dbias, block_rows, p.cols),
        )
    };
    let mut first = block_rows.first;
    while first < block_rows.end {
        let at = block_rows.at(first, p.inner);
        // SAFETY: the code accesses row `at` of the operands. The host checked that the operands contain this
        // row. No other team (threads that share a row) writes the `dx` of this row.
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
        // Process the tiles (16 bytes per thread each) in reverse order. The tiles at the end of the row are
        // still in the cache from the previous pass.
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

/// Computes the gradients of LayerNorm, `ROWS` rows at a time. Each thread has `IN_REGISTERS` packs (16 bytes
/// each) of a row, and a row must fill the packs of all threads.
///
/// If a second gradient `dsum` must be added to `dx`, this function processes one row at a time, even if
/// `ROWS` is 2. With `dsum`, the registers do not suffice for two rows.
///
/// # Safety
/// The requirements of [`multi_row`](multi_row::multi_row) apply.
#[inline(always)]
pub(crate) unsafe fn norm_backward_multi_row<T: Elem, const IN_REGISTERS: usize, const ROWS: usize>(
    operands: Operands,
    weight: Weight,
    sums: PartialSums,
    p: NormBackwardParams,
) {
    // SAFETY: `multi_row` accesses the operands, and the caller guarantees its requirements. `DSUM`, the last
    // const parameter, is true only if `dsum` is present.
    unsafe {
        if operands.dsum.base.is_null() {
            multi_row::multi_row::<T, IN_REGISTERS, ROWS, false>(operands, weight, sums, p)
        } else {
            multi_row::multi_row::<T, IN_REGISTERS, 1, true>(operands, weight, sums, p)
        }
    }
}
