//! The gradient of [`cross_entropy`](super::cross_entropy): `dx[r, c] = (exp(x[r, c] - lse[r]) - [c == target[r]]) * dloss[r]`.
//!
//! Each element on its own, from the logits and the `lse` that the forward kept: nothing of the size of the logits is
//! kept. With label smoothing `s` the target has `1 - s` and every class `s / cols` more; z-loss makes the exponential
//! `1 + 2 * z * lse` times as large. A row whose target is ignored is 0; one whose target is no class, NaN.
use cuda_std::mem::load_u32;
use cuda_std::prelude::*;

use crate::softmax::online::{exp, logits};
use crate::softmax::target::{Class, CrossEntropyParams, Targets};

/// What the forward computed and what comes back for it, an f32 for each row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gradients {
    /// The logarithm of the sum of exponentials.
    pub lse: *const u8,
    /// The gradient of the loss.
    pub dloss: *const u8,
}

/// The gradient of one row: `exp(x - lse) * scale - shift`, and `hot` less in the column of the target.
#[derive(Clone, Copy)]
struct RowGradient {
    lse: f32,
    scale: f32,
    shift: f32,
    hot: f32,
}

impl Gradients {
    /// The two of `row`.
    ///
    /// # Safety
    /// There are more than `row` of each.
    #[inline(always)]
    unsafe fn load(self, row: u64) -> [f32; 2] {
        let at = |base: *const u8| base.wrapping_add(row as usize * size_of::<f32>());
        // SAFETY: as the caller promises.
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

    /// Of a logit that is not the target's.
    #[inline(always)]
    fn apply<T: Elem>(&self, x: f32) -> f32 {
        fma(exp::<T>(x - self.lse), self.scale, -self.shift)
    }
}

/// A row goes by in steps of `STEP` tiles whose loads are in flight together.
///
/// # Safety
/// The host checked that `x` and `dx` hold `p.rows` rows of `p.cols` elements, all `Rows::is_vector` if `VECTOR`, that
/// there are as many targets and gradients, and that `dx` overlaps nothing else.
#[inline(always)]
unsafe fn cross_entropy_backward<T: Elem, const STEP: usize, const VECTOR: bool>(
    x: Rows,
    targets: Targets,
    from: Gradients,
    dx: Rows,
    p: CrossEntropyParams,
) {
    let team = Team::of_block();
    if team.row >= p.rows {
        return;
    }
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: as the caller promises; a team's row is its own.
    let (x, dx) = unsafe {
        (Row::<T, VECTOR>::of(&x, team, at, p.cols), RowMut::<T, VECTOR>::of(&dx, team, at, p.cols))
    };
    // SAFETY: a target and two numbers for each row.
    let (target, row_values) = unsafe { (targets.load(team.row), from.load(team.row)) };
    // The row's first loads are under way before anything waits for these.
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
            let gradient = Pack::from_lanes(packs[i].lanes().map(|x| row.apply::<T>(x)));
            dx.store(first + i as u32, gradient, Store::Default);
        }
    }
    // Once a row, by the thread that wrote the column with the others.
    if let Class::Column(column) = class
        && dx.owns(column)
        && let Some(hit) = x.get(column, Load::ReadOnly)
    {
        dx.set(column, row.apply::<T>(hit) - row.hot, Store::Default);
    }
}

/// # Safety
/// As [`cross_entropy_backward`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, targets: Targets, from: Gradients, dx: Rows, p: CrossEntropyParams) {
    thread::launch_bounds::<512, 2>();
    // SAFETY: the host sets `p.vector` only where every operand is.
    unsafe {
        if p.vector != 0 {
            cross_entropy_backward::<T, 4, true>(x, targets, from, dx, p)
        } else {
            cross_entropy_backward::<T, 1, false>(x, targets, from, dx, p)
        }
    }
}

entry!(cross_entropy_backward_any<T: [f32, f16, bf16]>(x: Rows, targets: Targets, from: Gradients, dx: Rows, p: CrossEntropyParams)
    => any_layout::<T>(x, targets, from, dx, p));
