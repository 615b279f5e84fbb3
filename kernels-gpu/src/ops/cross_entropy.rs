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
use cuda_std::mem::store_u32;
use cuda_std::prelude::*;

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

/// The factor by which each term of the sum of logits is scaled. Even the sum of 2^32 logits with the largest
/// f32 value then does not overflow. Label smoothing computes the mean of the logits from this sum. The
/// factor is a power of two, so it changes only exponents and adds no rounding error.
const SCALE: f32 = 1.0 / (1_u64 << 32) as f32;

/// Returns the sum of the elements of `lanes`, times `SCALE`. The additions form a balanced tree.
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

/// Computes the loss of the calling team's row. A team is the set of threads that share a row. The row is
/// read in steps of `STEP` tiles, and a tile is one 16-byte pack per thread. The loads of a step are in
/// flight together.
///
/// # Safety
/// The host checked that `x` holds `p.rows` rows of `p.cols` elements. Targets, `loss` and `lse` have one
/// element per row. If `VECTOR` is true, `x` allows 16-byte accesses (`Rows::is_vector`). `loss` and `lse`
/// overlap no other operand.
#[inline(always)]
unsafe fn cross_entropy<T: Elem, const STEP: usize, const VECTOR: bool, const CAPPED: bool>(
    x: Rows,
    targets: Targets,
    losses: Losses,
    p: CrossEntropyParams,
    softcap: Softcap,
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
    let (mut partial, mut scaled_sum) = (ExpSum::EMPTY, 0.0);
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
                scaled_sum += sum_scaled(lanes.map(|x| softcap.value::<CAPPED>(x)));
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
        scaled_sum = team.sum(scaled_sum, &mut SharedMemory::of_launch());
    }
    if !writes {
        return;
    }

    let log_sum = ln(sum);
    let lse = max + log_sum;
    // The loss is `lse - hit`, where `hit` is the logit of the target. With large logits, the rounding error
    // of `lse` can exceed the loss. The code therefore subtracts the largest logit from `hit`, and the result
    // from `log_sum`.
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
            cross_entropy::<T, STEP, true, CAPPED>(x, targets, losses, p, softcap)
        } else {
            cross_entropy::<T, 1, false, CAPPED>(x, targets, losses, p, softcap)
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
        => any_layout::<T, 2, true, 1>(x, targets, losses, p, softcap)
}
