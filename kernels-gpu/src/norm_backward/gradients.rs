//! The kernels: a row in the registers of its team, or read again for each pass.
use cuda_std::prelude::*;

use super::block_sums::{Share, SharedSums, SumsRow};
use super::params::{Operands, Params, Sums};
use super::row_pass::{Folds, Line, Stats, Sum};
use super::{multi_row, prefetch};
use crate::layout::operand_kind::OperandKind;
use crate::rms::weight::Weight;

/// The gradients of the rows that the block takes: a row stays in `HELD` tiles, or is read again for each
/// pass.
///
/// # Safety
/// The host checked that `dy`, `x` and `dx`, and `dsum` where it is, hold `p.rows` rows of `p.cols` elements
/// for each group, the weight a row of `p.cols` for each group, of the type that its kind says, and the sums
/// one of f32 for each block; all `Rows::is_vector` if `VECTOR`; and that what is written overlaps nothing
/// else.
#[inline(always)]
pub(crate) unsafe fn norm_backward<T: Elem, const HELD: usize, const VECTOR: bool, const LAYER: bool>(
    operands: Operands,
    weight: Weight,
    sums: Sums,
    p: Params,
) {
    let share = Share::of_block(p.rows);
    let of_kind = |kind| Weight { kind, ..weight };
    // SAFETY: as the caller promises.
    unsafe {
        match weight.kind {
            _ if HELD == 0 && VECTOR => streamed::<T, 4, VECTOR, LAYER>(&share, operands, weight, sums, p),
            _ if HELD == 0 => streamed::<T, 1, VECTOR, LAYER>(&share, operands, weight, sums, p),
            // One body for all kinds, where speed is not decided by it.
            _ if !VECTOR => held::<T, HELD, VECTOR, LAYER>(&share, operands, weight, sums, p),
            OperandKind::ABSENT => {
                held::<T, HELD, VECTOR, LAYER>(&share, operands, of_kind(OperandKind::ABSENT), sums, p)
            }
            OperandKind::SAME => {
                held::<T, HELD, VECTOR, LAYER>(&share, operands, of_kind(OperandKind::SAME), sums, p)
            }
            // For f32 the two kinds are one, and the host says `SAME`.
            _ if size_of::<T>() == 4 => {}
            _ => held::<T, HELD, VECTOR, LAYER>(&share, operands, of_kind(OperandKind::F32), sums, p),
        }
    }
}

/// The rows of the block, each in the registers of a team, where its columns' sums stay too.
///
/// # Safety
/// As [`norm_backward`].
#[inline(always)]
unsafe fn held<T: Elem, const HELD: usize, const VECTOR: bool, const LAYER: bool>(
    share: &Share,
    operands: Operands,
    weight: Weight,
    sums: Sums,
    p: Params,
) {
    let mut folds = Folds::of(share.team);
    let mut memory = Folds::behind();
    let mut dweight = [T::Lanes::splat(0.0); HELD];
    // Two sums for each column are more than there are registers for.
    let dbias = SharedSums::take(&mut memory, if LAYER { HELD as u32 } else { 0 }, T::Lanes::LEN);
    let mut first = share.first;
    while first < share.end {
        let at = share.at(first, p.inner);
        // SAFETY: as the caller promises; a team's row is its own.
        let (line, _) = unsafe { Line::<T, VECTOR, LAYER>::of(share, &operands, weight, at, &p) };
        let pairs = line.load::<HELD>(0);
        let [mut mean, mut offset] = [0.0; 2];
        if LAYER {
            let mut sum = Sum::ZERO;
            for tile in 0..HELD {
                sum = line.means(tile as u32, pairs[tile], sum);
            }
            [mean, offset] = folds.means(sum, p.inv_cols);
        }
        let mut sum = Sum::ZERO;
        for tile in 0..HELD {
            sum = line.products(tile as u32, pairs[tile], mean, sum);
        }
        if VECTOR {
            let next = [(first + share.step) as u32, thread::block_dim()[1], share.end as u32];
            // SAFETY: as the caller promises.
            unsafe { prefetch::bring::<T>(&operands, next, &p) };
        }
        let stats = Stats::of(mean, offset, folds.means(sum, p.inv_cols), p.eps, at);
        // Addresses that are worked out anew are not in the way of the reductions.
        // SAFETY: as above.
        let (line, dx) = unsafe { Line::<T, VECTOR, LAYER>::of(share, &operands, weight, at, &p) };
        let dbias = dbias.forget();
        for tile in 0..HELD {
            let [dy, d] = line.lanes(pairs[tile], stats);
            if LAYER {
                dbias.add(tile as u32, dy);
            }
            let xhat = d.map(|d| d * stats.inv_rms);
            dweight[tile] = T::Lanes::from_fn(|i| fma(dy.get(i), xhat.get(i), dweight[tile].get(i)));
            let pack = line.dx(tile as u32, [dy, d], stats);
            dx.store(tile as u32, pack, Store::Default);
        }
        first += share.step;
    }
    // SAFETY: as the caller promises.
    let (dweight_row, dbias_row) = unsafe {
        (SumsRow::<VECTOR>::of(sums.dweight, share, p.cols), SumsRow::<VECTOR>::of(sums.dbias, share, p.cols))
    };
    let memory = memory.take(thread::block_dim()[0] * thread::block_dim()[1] * T::Lanes::LEN);
    let dbias = dbias.forget();
    for tile in 0..HELD {
        dweight_row.write_over_teams(tile as u32, dweight[tile], share.team, memory);
        if LAYER {
            dbias_row.write_over_teams(tile as u32, dbias.get::<T::Lanes>(tile as u32), share.team, memory);
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
    share: &Share,
    operands: Operands,
    weight: Weight,
    sums: Sums,
    p: Params,
) {
    let mut folds = Folds::of(share.team);
    // SAFETY: as the caller promises.
    let (dweight, dbias) = unsafe {
        (SumsRow::<VECTOR>::of(sums.dweight, share, p.cols), SumsRow::<VECTOR>::of(sums.dbias, share, p.cols))
    };
    let mut first = share.first;
    while first < share.end {
        let at = share.at(first, p.inner);
        // SAFETY: as the caller promises; a team's row is its own.
        let (line, dx) = unsafe { Line::<T, VECTOR, LAYER>::of(share, &operands, weight, at, &p) };
        let steps = p.cols.div_ceil(share.team.size * T::Lanes::LEN).div_ceil(STEP as u32);
        let [mut mean, mut offset] = [0.0; 2];
        if LAYER {
            let mut sum = Sum::ZERO;
            for step in 0..steps {
                let pairs = line.load::<STEP>(step * STEP as u32);
                for i in 0..STEP {
                    sum = line.means(step * STEP as u32 + i as u32, pairs[i], sum);
                }
            }
            [mean, offset] = folds.means(sum, p.inv_cols);
        }
        let mut sum = Sum::ZERO;
        for step in 0..steps {
            let pairs = line.load::<STEP>(step * STEP as u32);
            for i in 0..STEP {
                sum = line.products(step * STEP as u32 + i as u32, pairs[i], mean, sum);
            }
        }
        let stats = Stats::of(mean, offset, folds.means(sum, p.inv_cols), p.eps, at);
        // Backwards: what was read last is nearest.
        for step in (0..steps).rev() {
            let pairs = line.load::<STEP>(step * STEP as u32);
            for i in 0..STEP {
                let tile = step * STEP as u32 + i as u32;
                let [dy, d] = line.lanes(pairs[i], stats);
                dx.store(tile, line.dx(tile, [dy, d], stats), Store::Default);
                dweight.add(tile, dy.zip(d, |dy, d| dy * (d * stats.inv_rms)), first == share.first);
                if LAYER {
                    dbias.add(tile, dy, first == share.first);
                }
            }
        }
        first += share.step;
    }
}

/// The same of LayerNorm, `ROWS` at a time of rows that fill `HELD` packs of each thread: see
/// [`beside`](multi_row::beside). One at a time where there is a `dsum`, for which there are no registers
/// else.
///
/// # Safety
/// As [`beside`](multi_row::beside).
#[inline(always)]
pub(crate) unsafe fn norm_backward_beside<T: Elem, const HELD: usize, const ROWS: usize>(
    operands: Operands,
    weight: Weight,
    sums: Sums,
    p: Params,
) {
    // SAFETY: as the caller promises.
    unsafe {
        if operands.dsum.base.is_null() {
            multi_row::beside::<T, HELD, ROWS, false>(operands, weight, sums, p)
        } else {
            multi_row::beside::<T, HELD, 1, true>(operands, weight, sums, p)
        }
    }
}
