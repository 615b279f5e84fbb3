//! `loss[r] = lse[r] - x[r, target[r]]`, `lse[r] = ln(sum_c(exp(x[r, c])))`: cross-entropy of logits, a class index a row.
//!
//! A row is read once, whatever its length, and nothing of it is written: the exponentials are summed online, against
//! the largest logit so far. With label smoothing `s` the loss is `(1 - s) * loss + s * (lse - mean_c(x[r, c]))`, and
//! z-loss adds `z * lse^2`. A row whose target is ignored has loss 0; one whose target is no class, NaN.
use cuda_std::mem::store_u32;
use cuda_std::prelude::*;

use crate::softmax::online::{ExpSum, ln, logits};
use crate::softmax::target::{Class, CrossEntropyParams, Targets};

/// What the kernel writes, an f32 for each row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Losses {
    /// The loss.
    pub loss: *mut u8,
    /// The logarithm of the sum of exponentials.
    pub lse: *mut u8,
}

/// The scale of the sum of logits, from which label smoothing takes their mean. A sum of 2^32 of the largest float32
/// does not overflow, and a power of two changes no bit of a sum that would not overflow without it.
const SCALE: f32 = 1.0 / (1_u64 << 32) as f32;

/// `SCALE` times the sum of the lanes, as a balanced tree.
#[inline(always)]
fn sum_scaled<L: F32Vec>(lanes: L) -> f32 {
    let half = L::LEN as usize / 2;
    let mut sums =
        L::from_fn(|i| if i < half { fma(lanes.get(i), SCALE, lanes.get(i + half) * SCALE) } else { 0.0 });
    let mut width = half / 2;
    while width > 0 {
        sums = L::from_fn(|i| if i < width { sums.get(i) + sums.get(i + width) } else { 0.0 });
        width /= 2;
    }
    sums.get(0)
}

/// A row goes by in steps of `STEP` tiles whose loads are in flight together.
///
/// # Safety
/// The host checked that `x` holds `p.rows` rows of `p.cols` elements, all `Rows::is_vector` if `VECTOR`, that there
/// are as many targets and places for results, and that the results overlap nothing else.
#[inline(always)]
unsafe fn cross_entropy<T: Elem, const STEP: usize, const VECTOR: bool>(
    x: Rows,
    targets: Targets,
    losses: Losses,
    p: CrossEntropyParams,
) {
    let team = Team::of_block();
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: as the caller promises.
    let x = unsafe { Row::<T, VECTOR>::of(&x, team, at, p.cols) };
    let writes = team.rank == 0 && team.row < p.rows;
    // SAFETY: a target for each row.
    let target = if writes { unsafe { targets.load(team.row) } } else { targets.ignore_index };
    let smoothed = p.label_smoothing != 0.0;
    let (mut partial, mut scaled_sum) = (ExpSum::EMPTY, 0.0);
    for step in 0..x.tiles().div_ceil(STEP as u32) {
        let first = step * STEP as u32;
        partial = partial.with(logits::<T, STEP, VECTOR>(x, first));
        if smoothed {
            // Again, with zeros past the end: from L1, and only for those who smooth.
            for i in 0..STEP {
                scaled_sum += sum_scaled(x.load(first + i as u32, Load::ReadOnly).lanes());
            }
        }
    }
    // Here, and not before the row: its loads would wait for the target. The logit, from L1 or L2, arrives during the fold.
    let class = targets.class(target, p.cols);
    let hit = match class {
        Class::Column(column) => x.get(column, Load::ReadOnly).unwrap_or(f32::NAN),
        Class::Ignored | Class::Outside => f32::NAN,
    };
    let ExpSum { max, sum } = partial.reduce::<T>(team);
    if smoothed {
        block::sync();
        scaled_sum = team.sum(scaled_sum, &mut SharedMemory::of_launch());
    }
    if !writes {
        return;
    }

    let log_sum = ln(sum);
    let lse = max + log_sum;
    // Not `lse - hit`: where the logits are large, `lse` has lost what the loss is made of.
    let mut loss = log_sum - (hit - max);
    if smoothed {
        let mean = scaled_sum * (1.0 / p.cols as f32) * (1.0 / SCALE);
        let others = log_sum - (mean - max);
        loss = (1.0 - p.label_smoothing) * loss + p.label_smoothing * others;
    }
    if p.z_loss != 0.0 {
        loss += p.z_loss * lse * lse;
    }
    if class == Class::Ignored {
        loss = 0.0;
    }
    let row_address = |base: *mut u8| base.wrapping_add(team.row as usize * size_of::<f32>());
    // SAFETY: a place for each row, which this thread alone writes.
    unsafe {
        store_u32(row_address(losses.loss), loss.to_bits(), Store::Default);
        store_u32(row_address(losses.lse), lse.to_bits(), Store::Default);
    }
}

/// # Safety
/// As [`cross_entropy`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, targets: Targets, losses: Losses, p: CrossEntropyParams) {
    thread::launch_bounds::<512, 2>();
    // SAFETY: the host sets `p.vector` only where every operand is.
    unsafe {
        if p.vector != 0 {
            cross_entropy::<T, 4, true>(x, targets, losses, p)
        } else {
            cross_entropy::<T, 1, false>(x, targets, losses, p)
        }
    }
}

entry!(cross_entropy_any<T: [f32, f16, bf16]>(x: Rows, targets: Targets, losses: Losses, p: CrossEntropyParams)
    => any_layout::<T>(x, targets, losses, p));
