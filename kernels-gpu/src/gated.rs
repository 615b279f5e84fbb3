//! The rows `x + gate * y`: a residual branch that comes back.
use cuda_std::prelude::*;

use crate::operand::{Modulation, zip};
use crate::passes::{Passes, Source};
use crate::side::Form;

/// The operands of a gated residual and how they are combined: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gated {
    /// The residual stream.
    pub x: Rows,
    /// The branch.
    pub y: Rows,
    /// What multiplies the branch.
    pub gate: Modulation,
    /// Where the sum goes.
    pub sum: Rows,
    /// Which form the gate has: as `Params::form`.
    pub form: u32,
    /// Round the product too, as separate operators do. 0 or 1.
    pub round_each: u32,
    /// Clamp the sum to what f16 can hold, ±65504. 0 or 1.
    pub clip: u32,
}

/// `value` within what f16 can hold: an infinity too; a NaN stays one.
#[inline(always)]
pub(crate) fn clamped(value: f32) -> f32 {
    if value > 65504.0 {
        65504.0
    } else if value < -65504.0 {
        -65504.0
    } else {
        value
    }
}

/// A thread's columns of a [`Gated`].
#[derive(Clone, Copy)]
pub(crate) struct GatedRow<T, F, const ACCESS: u32> {
    x: QuadRow<T, ACCESS>,
    y: QuadRow<T, ACCESS>,
    gate: F,
    sum: QuadRowMut<T, ACCESS>,
    round_each: bool,
    clip: bool,
}

impl<T: Elem, F: Form<T>, const ACCESS: u32> GatedRow<T, F, ACCESS> {
    /// # Safety
    /// As [`QuadRow::of`] for each operand; the gate is of the form `F`.
    #[inline(always)]
    pub unsafe fn of(gated: &Gated, at: RowAt, columns: QuadColumns) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                x: QuadRow::of(&gated.x, at, columns),
                y: QuadRow::of(&gated.y, at, columns),
                gate: F::of(&gated.gate, at, columns),
                sum: QuadRowMut::of(&gated.sum, at, columns),
                round_each: gated.round_each != 0,
                clip: gated.clip != 0,
            }
        }
    }

    /// The sum, rounded.
    #[inline(always)]
    fn add(&self, tile: u32, [x, y]: [Quad<T>; 2]) -> Quad<T> {
        let gate = self.gate.fetch(tile);
        let sum = if self.round_each {
            x.add(if self.gate.exists() { F::quad(gate).mul(y) } else { y })
        } else {
            let gate = if self.gate.exists() { F::lanes(gate) } else { [1.0; 4] };
            let branch = zip(gate, y.lanes(), |gate, y| gate * y);
            Quad::from_lanes(zip(x.lanes(), branch, |x, branch| x + branch))
        };
        if !self.clip {
            return sum;
        }
        // An infinity too; a NaN stays one.
        let clamp = |v: f32| {
            if v > 65504.0 {
                65504.0
            } else if v < -65504.0 {
                -65504.0
            } else {
                v
            }
        };
        Quad::from_lanes(sum.lanes().map(clamp))
    }
}

impl<T: Elem, F: Form<T>, const ACCESS: u32> Source<T, ACCESS> for GatedRow<T, F, ACCESS> {
    const STAGED: bool = false;
    type Parts = [Quad<T>; 2];
    const EMPTY: [Quad<T>; 2] = [Quad::ZERO; 2];
    #[inline(always)]
    fn parts(&self, _: &Passes<T, ACCESS>, tile: u32) -> [Quad<T>; 2] {
        [self.x.get(tile), self.y.get(tile)]
    }
    #[inline(always)]
    fn take(&self, tile: u32, parts: [Quad<T>; 2]) -> Quad<T> {
        let sum = self.add(tile, parts);
        self.sum.put(tile, sum);
        sum
    }
    #[inline(always)]
    fn again(&self, tile: u32) -> Quad<T> {
        self.sum.written(tile)
    }
}
