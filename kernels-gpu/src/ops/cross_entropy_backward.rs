//! Gradient of [`cross_entropy`](super::cross_entropy):
//! `dx[r, c] = (exp(x[r, c] - lse[r]) - [c == target[r]]) * dloss[r]`.
//!
//! `[c == target[r]]` is 1 in the column of the target, and 0 in all other columns. Each element of `dx` is
//! computed independently, from its logit and the saved `lse`. The forward pass saves no tensor as large as
//! the logits.
//!
//! With label smoothing `s`, `(1 - s) * [c == target[r]] + s / cols` replaces `[c == target[r]]`. With the
//! factor `z` of z-loss, the exponential is multiplied by `1 + 2 * z * lse[r]`. The gradient of a row with an
//! ignored target is 0. With a softcap, `cap * tanh(x / cap)` replaces `x` in the formula. The gradient is
//! also multiplied by the derivative of this expression. The gradient of a row whose target is not a class is
//! NaN.
use cuda_std::mem::load_u32;
use cuda_std::prelude::*;

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

/// Coefficients of a row's gradient, which is `exp(x - lse) * scale - shift`. In the column of the target,
/// `hot` is also subtracted.
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

    /// Returns the gradient of a logit outside the target's column.
    #[inline(always)]
    fn apply<T: Elem, const CAPPED: bool>(&self, x: f32, softcap: Softcap) -> f32 {
        if !CAPPED {
            return fma(exp::<T>(x - self.lse), self.scale, -self.shift);
        }
        let [x, slope] = softcap.value_and_slope(x);
        fma(exp::<T>(x - self.lse), self.scale, -self.shift) * slope
    }

    /// Returns the gradient of the logit in the target's column.
    #[inline(always)]
    fn of_target<T: Elem, const CAPPED: bool>(&self, x: f32, softcap: Softcap) -> f32 {
        if !CAPPED {
            return self.apply::<T, false>(x, softcap) - self.hot;
        }
        let [x, slope] = softcap.value_and_slope(x);
        (fma(exp::<T>(x - self.lse), self.scale, -self.shift) - self.hot) * slope
    }
}

/// Computes the gradient of the calling team's row. A team is the set of threads that share a row. The row is
/// read in steps of `STEP` tiles, and a tile is one 16-byte pack per thread. The loads of a step are in
/// flight together.
///
/// # Safety
/// The host checked that `x` and `dx` hold `p.rows` rows of `p.cols` elements. Targets, `lse` and `dloss`
/// have one element per row. If `VECTOR` is true, `x` and `dx` allow 16-byte accesses (`Rows::is_vector`).
/// `dx` overlaps no other operand.
#[inline(always)]
unsafe fn cross_entropy_backward<T: Elem, const STEP: usize, const VECTOR: bool, const CAPPED: bool>(
    x: Rows,
    targets: Targets,
    from: Gradients,
    dx: Rows,
    p: CrossEntropyParams,
    softcap: Softcap,
) {
    let team = Team::of_block();
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
    let row = RowGradient::of(row_values, class, p);
    for step in 0..x.tiles().div_ceil(STEP as u32) {
        let first = step * STEP as u32;
        if step > 0 {
            packs = logits::<T, STEP, VECTOR>(x, first);
        }
        for i in 0..STEP {
            let gradient = Pack::from_lanes(packs[i].lanes().map(|x| row.apply::<T, CAPPED>(x, softcap)));
            dx.store(first + i as u32, gradient, Store::Default);
        }
    }
    // In the column of the target, the gradient has a different formula. The thread that wrote this column
    // above overwrites it with the value of this formula.
    if let Class::Column(column) = class
        && dx.owns(column)
        && let Some(hit) = x.get(column, Load::ReadOnly)
    {
        dx.set(column, row.of_target::<T, CAPPED>(hit, softcap), Store::Default);
    }
}

/// # Safety
/// The requirements of [`cross_entropy_backward`] apply. If `p.vector` is 1, the rows allow 16-byte accesses
/// (`Rows::is_vector`).
#[inline(always)]
unsafe fn any_layout<T: Elem, const CAPPED: bool>(
    x: Rows,
    targets: Targets,
    from: Gradients,
    dx: Rows,
    p: CrossEntropyParams,
    softcap: Softcap,
) {
    thread::launch_bounds::<512, 2>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` only if `x` and `dx` allow 16-byte accesses.
    unsafe {
        if p.vector != 0 {
            cross_entropy_backward::<T, 4, true, CAPPED>(x, targets, from, dx, p, softcap)
        } else {
            cross_entropy_backward::<T, 1, false, CAPPED>(x, targets, from, dx, p, softcap)
        }
    }
}

entry! {
    @shared(|block| Team::shared_bytes(block))
    cross_entropy_backward_any<T: [f32, f16, bf16]>(x: Rows, targets: Targets, from: Gradients, dx: Rows, p: CrossEntropyParams)
        => any_layout::<T, false>(x, targets, from, dx, p, Softcap::NONE);
    @shared(|block| Team::shared_bytes(block))
    cross_entropy_backward_softcap_any<T: [f32, f16, bf16]>
        (x: Rows, targets: Targets, from: Gradients, dx: Rows, p: CrossEntropyParams, softcap: Softcap)
        => any_layout::<T, true>(x, targets, from, dx, p, softcap)
}
