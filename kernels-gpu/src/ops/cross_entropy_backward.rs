//! Gradient of [`cross_entropy`](super::cross_entropy):
//! `dx[r, c] = (exp(x[r, c] - lse[r]) - [c == target[r]]) * dloss[r]`.
//!
//! `[c == target[r]]` is 1 in the column of the target, and 0 in all other columns. Each element of `dx` is
//! computed independently, from its logit and the saved `lse`. The forward pass saves no tensor as large as
//! the logits.
//!
//! With label smoothing `s`, `(1 - s) * [c == target[r]] + s / cols` replaces `[c == target[r]]`. With the
//! factor `z` of z-loss, the exponential is multiplied by `1 + 2 * z * lse[r]`. The gradient of a row with an
//! ignored target is 0. With a softcap, the formula takes `cap * tanh(x / cap)` in place of `x`, and the
//! gradient is multiplied by the derivative of this expression. The gradient of a row whose target is not a
//! class is NaN.
//!
//! The kernels with `weight` in their name have one weight `w[c]` per class. With `t = target[r]` and
//! `p[c] = exp(x[r, c] - lse[r])`, the gradient is `dloss[r]` times
//! `w[t] * ((1 - s) * (p[c] - [c == t]) + 2 * z * lse[r] * p[c]) + s * (mean(w) * p[c] - w[c] / cols)`.
use cuda_std::mem::load_u32;
use cuda_std::prelude::*;

use crate::rms::weight::Weight;
use crate::softmax::class_weights::ClassWeights;
use crate::softmax::online::{exp, logits};
use crate::softmax::softcap::Softcap;
use crate::softmax::target::{Class, CrossEntropyParams, Targets};

/// Kernel argument: `lse` from the forward pass, and the incoming gradient of the loss. Each has one f32 per
/// row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gradients {
    /// Logarithms of the sums of exponentials.
    pub lse: *const u8,
    /// Incoming gradients of the losses.
    pub dloss: *const u8,
}

/// Coefficients of a row's gradient, which is `exp(x - lse) * scale - shift`. With weights of the classes,
/// `shift` is also multiplied by the weight of the column. In the column of the target, `hot` is also
/// subtracted.
#[derive(Clone, Copy)]
struct RowGradient {
    lse: f32,
    scale: f32,
    shift: f32,
    hot: f32,
}

impl Gradients {
    /// Loads `lse` and `dloss` of `row`.
    ///
    /// # Safety
    /// Both arrays have more than `row` elements.
    #[inline(always)]
    unsafe fn load(self, row: u64) -> [f32; 2] {
        let at = |base: *const u8| base.wrapping_add(row as usize * size_of::<f32>());
        // SAFETY: the load reads element `row` of an array. The caller guarantees that `row` is below the
        // length of both arrays.
        [self.lse, self.dloss].map(|base| f32::from_bits(unsafe { load_u32(at(base), Load::ReadOnly) }))
    }
}

impl RowGradient {
    #[inline(always)]
    fn of([lse, dloss]: [f32; 2], class: Class, p: CrossEntropyParams) -> Self {
        let dloss = if class == Class::Outside { f32::NAN } else { dloss };
        Self {
            lse,
            scale: dloss * fma(2.0 * p.z_loss, lse, 1.0),
            shift: dloss * (p.label_smoothing / p.cols as f32),
            hot: dloss * (1.0 - p.label_smoothing),
        }
    }

    /// Returns the coefficients for a target whose class has the weight `of_target`. `mean` is the mean of
    /// the weights of all classes.
    #[inline(always)]
    fn weighted(self, [of_target, mean]: [f32; 2], dloss: f32, p: CrossEntropyParams) -> Self {
        let z_term = 2.0 * p.z_loss * self.lse;
        let scale = of_target * (1.0 - p.label_smoothing + z_term) + p.label_smoothing * mean;
        Self { scale: dloss * scale, hot: self.hot * of_target, ..self }
    }

    /// Returns the gradient of a logit outside the target's column. `weight` is the weight of this column, or
    /// 1.
    #[inline(always)]
    fn apply<T: Elem, const CAPPED: bool>(&self, x: f32, weight: f32, softcap: Softcap) -> f32 {
        if !CAPPED {
            return fma(exp::<T>(x - self.lse), self.scale, -(self.shift * weight));
        }
        let [x, slope] = softcap.value_and_slope(x);
        fma(exp::<T>(x - self.lse), self.scale, -(self.shift * weight)) * slope
    }

    /// Returns the gradient of the logit in the target's column, which has the weight `weight`, or 1.
    #[inline(always)]
    fn of_target<T: Elem, const CAPPED: bool>(&self, x: f32, weight: f32, softcap: Softcap) -> f32 {
        if !CAPPED {
            return self.apply::<T, false>(x, weight, softcap) - self.hot;
        }
        let [x, slope] = softcap.value_and_slope(x);
        (fma(exp::<T>(x - self.lse), self.scale, -(self.shift * weight)) - self.hot) * slope
    }
}

/// Computes the gradient of the calling team's row. A team is the set of threads that share a row. The row is
/// read in steps of `STEP` tiles, and a tile is one 16-byte pack per thread. The loads of a step are in
/// flight together.
///
/// # Safety The host checked that `x` and `dx` hold `p.rows` rows of `p.cols` elements. Targets, `lse` and
/// `dloss` have one element per row. `weight` is absent, or has `p.cols` elements of the type in
/// `weight.kind`. If `VECTOR` is true, `x`, `dx` and `weight` allow 16-byte accesses (`Rows::is_vector`).
/// `dx` overlaps no other operand.
#[inline(always)]
unsafe fn cross_entropy_backward<
    T: Elem,
    const STEP: usize,
    const VECTOR: bool,
    const CAPPED: bool,
    const WEIGHTED: bool,
>(
    x: Rows,
    targets: Targets,
    from: Gradients,
    dx: Rows,
    p: CrossEntropyParams,
    softcap: Softcap,
    weight: Weight,
) {
    let team = Team::of_block();
    // SAFETY: the host checked the weights of the classes.
    let weights = unsafe { ClassWeights::<T, VECTOR>::of(weight, team, p.cols) };
    // The mean of the weights is a block reduction, so also threads without a row compute it.
    let mean_weight = if WEIGHTED && p.label_smoothing != 0.0 { weights.mean(team, p.cols) } else { 0.0 };
    if team.row >= p.rows {
        return;
    }
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: the kernel reads row `at` of `x` and writes row `at` of `dx`. The host checked the rows of
    // both. No thread outside of the calling team (the threads that share a row) writes this row of `dx`.
    let (x, dx) = unsafe {
        (Row::<T, VECTOR>::of(&x, team, at, p.cols), RowMut::<T, VECTOR>::of(&dx, team, at, p.cols))
    };
    // SAFETY: the loads read the elements of row `team.row`, which is less than `p.rows`. The host checked
    // that targets, `lse` and `dloss` have one element per row.
    let (target, row_values) = unsafe { (targets.load(team.row), from.load(team.row)) };
    // Issue the first loads of the row before the first use of the target, `lse` and `dloss`. At this use,
    // the kernel waits until these three values have been loaded.
    let mut packs = logits::<T, STEP, VECTOR>(x, 0);
    let class = targets.class(target, p.cols);
    if class == Class::Ignored {
        for tile in 0..x.tiles() {
            dx.store(tile, Pack::ZERO, Store::Default);
        }
        return;
    }
    let mut row = RowGradient::of(row_values, class, p);
    if WEIGHTED && let Class::Column(column) = class {
        row = row.weighted([weights.get(column), mean_weight], row_values[1], p);
    }
    for step in 0..x.tiles().div_ceil(STEP as u32) {
        let first = step * STEP as u32;
        if step > 0 {
            packs = logits::<T, STEP, VECTOR>(x, first);
        }
        for i in 0..STEP {
            let lanes = packs[i].lanes();
            let gradient = if WEIGHTED {
                let weights = weights.lanes(first + i as u32);
                lanes.zip(weights, |x, weight| row.apply::<T, CAPPED>(x, weight, softcap))
            } else {
                lanes.map(|x| row.apply::<T, CAPPED>(x, 1.0, softcap))
            };
            dx.store(first + i as u32, Pack::from_lanes(gradient), Store::Default);
        }
    }
    // In the column of the target, the gradient has a different formula. The thread that wrote this column
    // above overwrites it with the value of this formula.
    if let Class::Column(column) = class
        && dx.owns(column)
        && let Some(hit) = x.get(column, Load::ReadOnly)
    {
        let weight = if WEIGHTED { weights.get(column) } else { 1.0 };
        dx.set(column, row.of_target::<T, CAPPED>(hit, weight, softcap), Store::Default);
    }
}

/// # Safety
/// The requirements of [`cross_entropy_backward`] apply. If `p.vector` is 1, the rows allow 16-byte accesses
/// (`Rows::is_vector`).
#[inline(always)]
unsafe fn any_layout<
    T: Elem,
    const STEP: usize,
    const CAPPED: bool,
    const WEIGHTED: bool,
    const MIN_BLOCKS: u32,
>(
    x: Rows,
    targets: Targets,
    from: Gradients,
    dx: Rows,
    p: CrossEntropyParams,
    softcap: Softcap,
    weight: Weight,
) {
    thread::launch_bounds::<512, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` only if `x`, `dx` and `weight` allow 16-byte accesses.
    unsafe {
        if p.vector != 0 {
            cross_entropy_backward::<T, STEP, true, CAPPED, WEIGHTED>(
                x, targets, from, dx, p, softcap, weight,
            )
        } else {
            cross_entropy_backward::<T, 1, false, CAPPED, WEIGHTED>(x, targets, from, dx, p, softcap, weight)
        }
    }
}

entry! {
    @shared(|block| Team::shared_bytes(block))
    cross_entropy_backward_any<T: [f32, f16, bf16]>(x: Rows, targets: Targets, from: Gradients, dx: Rows, p: CrossEntropyParams)
        => any_layout::<T, 4, false, false, 2>(x, targets, from, dx, p, Softcap::NONE, Weight::ABSENT);
    @shared(|block| Team::shared_bytes(block))
    cross_entropy_backward_softcap_any<T: [f32, f16, bf16]>
        (x: Rows, targets: Targets, from: Gradients, dx: Rows, p: CrossEntropyParams, softcap: Softcap)
        => any_layout::<T, 4, true, false, 2>(x, targets, from, dx, p, softcap, Weight::ABSENT);
    @shared(|block| Team::shared_bytes(block))
    cross_entropy_backward_weight_any<T: [f32, f16, bf16]>
        (x: Rows, targets: Targets, from: Gradients, dx: Rows, p: CrossEntropyParams, weight: Weight)
        => any_layout::<T, 2, false, true, 2>(x, targets, from, dx, p, Softcap::NONE, weight);
    @shared(|block| Team::shared_bytes(block))
    cross_entropy_backward_weight_softcap_any<T: [f32, f16, bf16]>
        (x: Rows, targets: Targets, from: Gradients, dx: Rows, p: CrossEntropyParams, softcap: Softcap, weight: Weight)
        => any_layout::<T, 2, true, true, 1>(x, targets, from, dx, p, softcap, weight)
}
