//! Cross-entropy of logits with one class index per row, as computed by `torch.nn.functional.cross_entropy`:
//! `loss[r] = lse[r] - x[r, target[r]]` with `lse[r] = ln(sum_c(exp(x[r, c])))`.
//!
//! The kernel reads each row only once from global memory, for any number of classes. It writes only `loss`
//! and `lse`, and does not store the probabilities. It computes the sum of exponentials online, that is,
//! relative to the largest logit read so far.
//!
//! With label smoothing `s`, the result is `(1 - s) * loss[r] + s * (lse[r] - mean_c(x[r, c]))` instead of
//! `loss[r]`. The kernel `cross_entropy_softcap` replaces each logit `x` by `cap * tanh(x / cap)` when it
//! reads it. z-loss with the factor `z` adds `z * lse[r]^2` to the result. A row with an ignored target has
//! loss 0. A row whose target is not a class has loss NaN.
//!
//! The kernels with `weight` in their name have one weight `w[c]` per class. With `t = target[r]`, the result
//! is `w[t] * ((1 - s) * loss[r] + z * lse[r]^2) + s * mean_c(w[c] * (lse[r] - x[r, c]))`.
use cuda_std::mem::store_u32;
use cuda_std::prelude::*;

use crate::rms::weight::Weight;
use crate::softmax::class_weights::{ClassWeights, Equal, Weighting};
use crate::softmax::online::{ExpSum, ln, logits};
use crate::softmax::softcap::Softcap;
use crate::softmax::target::{Class, CrossEntropyParams, Targets};

/// Kernel argument: the two outputs. Each output has one f32 per row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Losses {
    /// Losses.
    pub loss: *mut u8,
    /// Logarithms of the sums of exponentials.
    pub lse: *mut u8,
}

/// Computes the loss of the calling team's row. A team is the set of threads that share a row. The row is
/// read in steps of `STEP` tiles, and a tile is one 16-byte pack per thread. The loads of a step are in
/// flight together.
///
/// # Safety
/// The host checked that `x` holds `p.rows` rows of `p.cols` elements. Targets, `loss` and `lse` have one
/// element per row. If `VECTOR` is true, `x` allows 16-byte accesses (`Rows::is_vector`). `loss` and `lse`
/// overlap no other operand.
#[inline(always)]
unsafe fn cross_entropy<
    T: Elem,
    W: Weighting<T>,
    const STEP: usize,
    const VECTOR: bool,
    const CAPPED: bool,
>(
    x: Rows,
    targets: Targets,
    losses: Losses,
    p: CrossEntropyParams,
    softcap: Softcap,
    weights: W,
) {
    let team = Team::of_block();
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: the host checked the rows of `x`.
    let x = unsafe { Row::<T, VECTOR>::of(&x, team, at, p.cols) };
    let writes = team.rank == 0 && team.row < p.rows;
    // SAFETY: the load reads the target of row `team.row`. The host checked that each row has a target. The
    // row exists, because `writes` is true only if `team.row < p.rows`.
    let target = if writes { unsafe { targets.load(team.row) } } else { targets.ignore_index };
    let smoothed = p.label_smoothing != 0.0;
    let (mut partial, mut sums) = (ExpSum::EMPTY, W::NONE);
    for step in 0..x.tiles().div_ceil(STEP as u32) {
        let first = step * STEP as u32;
        let packs = logits::<T, STEP, VECTOR>(x, first);
        partial = if CAPPED { partial.with_capped(x, first, packs, softcap) } else { partial.with(packs) };
        if smoothed {
            // Label smoothing needs the sum of the logits. Past the end of the row, the values that the
            // function `logits` returned are -inf, so they cannot be added. Load the logits again, from L1:
            // `x.load` returns 0 past the end of the row.
            for i in 0..STEP {
                let lanes = x.load(first + i as u32, Load::ReadOnly).lanes();
                sums = weights.add(sums, first + i as u32, lanes.map(|x| softcap.value::<CAPPED>(x)));
            }
        }
    }
    // Load the logit of the target after the loop, from L1 or L2, so that the latency of this load overlaps
    // with the reduction. Before the loop, the kernel would have to wait for the target's index before it
    // could load the row.
    let class = targets.class(target, p.cols);
    let hit = match class {
        Class::Column(column) => softcap.value::<CAPPED>(x.get(column, Load::ReadOnly).unwrap_or(f32::NAN)),
        Class::Ignored | Class::Outside => f32::NAN,
    };
    let ExpSum { max, sum } = partial.reduce::<T>(team);
    if smoothed {
        block::sync();
        sums = W::reduce(team, sums);
    }
    if !writes {
        return;
    }

    let log_sum = ln(sum);
    let lse = max + log_sum;
    // The loss is `lse - hit`, where `hit` is the logit of the target. Do not compute this difference
    // directly: with large logits, the rounding error of `lse` can exceed the loss.
    let mut loss = weights.of_target(class, log_sum - (hit - max));
    if smoothed {
        let others = W::mean(sums, p.cols, log_sum, max);
        loss = (1.0 - p.label_smoothing) * loss + p.label_smoothing * others;
    }
    if p.z_loss != 0.0 {
        loss += weights.of_target(class, p.z_loss * lse * lse);
    }
    if class == Class::Ignored {
        loss = 0.0;
    }
    let row_address = |base: *mut u8| base.wrapping_add(team.row as usize * size_of::<f32>());
    // SAFETY: the stores write the elements of `loss` and `lse` for row `team.row`. The host checked that
    // both have one element per row. No other thread writes these elements.
    unsafe {
        store_u32(row_address(losses.loss), loss.to_bits(), Store::Default);
        store_u32(row_address(losses.lse), lse.to_bits(), Store::Default);
    }
}

/// # Safety
/// The requirements of [`cross_entropy`] apply. If `p.vector` is 1, all operands allow 16-byte accesses
/// (`Rows::is_vector`), and `STEP` is the number of packs that a thread loads at a time.
///
/// `MIN_BLOCKS` is the minimum number of blocks per SM. Kernels with a softcap (a limit of the logits) need
/// too many registers for two blocks per SM, and would spill.
#[inline(always)]
unsafe fn any_layout<T: Elem, const STEP: usize, const CAPPED: bool, const MIN_BLOCKS: u32>(
    x: Rows,
    targets: Targets,
    losses: Losses,
    p: CrossEntropyParams,
    softcap: Softcap,
) {
    thread::launch_bounds::<512, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` only if `x` allows 16-byte accesses.
    unsafe {
        if p.vector != 0 {
            cross_entropy::<T, _, STEP, true, CAPPED>(x, targets, losses, p, softcap, Equal)
        } else {
            cross_entropy::<T, _, 1, false, CAPPED>(x, targets, losses, p, softcap, Equal)
        }
    }
}

/// # Safety
/// The requirements of [`any_layout`] apply. `weight` has `p.cols` elements of the type in `weight.kind`. If
/// `p.vector` is 1, they are aligned to 16 bytes.
#[inline(always)]
unsafe fn weighted<T: Elem, const CAPPED: bool>(
    x: Rows,
    targets: Targets,
    losses: Losses,
    p: CrossEntropyParams,
    softcap: Softcap,
    weight: Weight,
) {
    thread::launch_bounds::<512, 1>();
    let team = Team::of_block();
    // SAFETY: the host checked the shapes, dtypes and alignment of the operands. The host sets `p.vector`
    // only if `x` and `weight` allow 16-byte accesses.
    unsafe {
        if p.vector != 0 {
            let weights = ClassWeights::<T, true>::of(weight, team, p.cols);
            cross_entropy::<T, _, 2, true, CAPPED>(x, targets, losses, p, softcap, weights)
        } else {
            let weights = ClassWeights::<T, false>::of(weight, team, p.cols);
            cross_entropy::<T, _, 1, false, CAPPED>(x, targets, losses, p, softcap, weights)
        }
    }
}

entry! {
    @shared(|block| Team::shared_bytes(block))
    cross_entropy_any<T: [f32, f16, bf16]>(x: Rows, targets: Targets, losses: Losses, p: CrossEntropyParams)
        => any_layout::<T, 4, false, 2>(x, targets, losses, p, Softcap::NONE);
    @shared(|block| Team::shared_bytes(block))
    cross_entropy_softcap_any<T: [f32, f16, bf16]>
        (x: Rows, targets: Targets, losses: Losses, p: CrossEntropyParams, softcap: Softcap)
        => any_layout::<T, 2, true, 1>(x, targets, losses, p, softcap);
    @shared(|block| Team::shared_bytes(block))
    cross_entropy_weight_any<T: [f32, f16, bf16]>
        (x: Rows, targets: Targets, losses: Losses, p: CrossEntropyParams, weight: Weight)
        => weighted::<T, false>(x, targets, losses, p, Softcap::NONE, weight);
    @shared(|block| Team::shared_bytes(block))
    cross_entropy_weight_softcap_any<T: [f32, f16, bf16]>
        (x: Rows, targets: Targets, losses: Losses, p: CrossEntropyParams, softcap: Softcap, weight: Weight)
        => weighted::<T, true>(x, targets, losses, p, softcap, weight)
}
