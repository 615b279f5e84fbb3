//! The rows `x + gate * y`: a residual branch that comes back.
use cuda_std::prelude::*;
use cuda_std::quad::round;

use crate::operand::{Modulation, ModulationRow, zip};
use crate::passes::Source;

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
    /// Round the product too, as separate operators do. 0 or 1.
    pub round_each: u32,
    /// Clamp the sum to what f16 can hold, ±65504. 0 or 1.
    pub clip: u32,
}

/// A thread's columns of a [`Gated`].
#[derive(Clone, Copy)]
pub(crate) struct GatedRow<T, const VECTOR: bool> {
    x: QuadRow<T, VECTOR>,
    y: QuadRow<T, VECTOR>,
    gate: ModulationRow<T, VECTOR>,
    sum: QuadRowMut<T, VECTOR>,
    round_each: bool,
    clip: bool,
}

impl<T: Elem, const VECTOR: bool> GatedRow<T, VECTOR> {
    /// # Safety
    /// As [`QuadRow::of`] for each operand.
    #[inline(always)]
    pub unsafe fn of(gated: &Gated, at: RowAt, columns: QuadColumns) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                x: QuadRow::of(&gated.x, at, columns),
                y: QuadRow::of(&gated.y, at, columns),
                gate: ModulationRow::of(&gated.gate, at, columns),
                sum: QuadRowMut::of(&gated.sum, at, columns),
                round_each: gated.round_each != 0,
                clip: gated.clip != 0,
            }
        }
    }

    /// The sum of two loaded quads, rounded.
    #[inline(always)]
    fn add(&self, tile: u32, [x, y]: [Quad<T>; 2]) -> Quad<T> {
        let mut branch = y.lanes();
        if let Some(gate) = self.gate.lanes(tile) {
            branch = zip(branch, gate, |y, gate| gate * y);
        }
        if self.round_each {
            branch = round::<T>(branch);
        }
        let sum = zip(x.lanes(), branch, |x, branch| x + branch);
        if !self.clip {
            return Quad::from_lanes(sum);
        }
        // The sum is clamped as the type holds it: an infinity too. A NaN stays one.
        let clamp = |v: f32| {
            if v > 65504.0 {
                65504.0
            } else if v < -65504.0 {
                -65504.0
            } else {
                v
            }
        };
        Quad::from_lanes(Quad::<T>::from_lanes(sum).lanes().map(clamp))
    }
}

impl<T: Elem, const VECTOR: bool> Source<T> for GatedRow<T, VECTOR> {
    type Fetched = [Quad<T>; 2];
    const WIDTH: usize = 2;
    const EMPTY: [Quad<T>; 2] = [Quad::ZERO; 2];
    #[inline(always)]
    fn fetch(&self, tile: u32) -> [Quad<T>; 2] {
        [self.x.load(tile, Load::ReadOnly), self.y.load(tile, Load::ReadOnly)]
    }
    #[inline(always)]
    fn take(&self, tile: u32, fetched: [Quad<T>; 2]) -> Quad<T> {
        let sum = self.add(tile, fetched);
        self.sum.store(tile, sum, Store::Default);
        sum
    }
    /// Adds again: two reads from L2, where reading the sum back would wait for its write.
    #[inline(always)]
    fn again(&self, tile: u32) -> Quad<T> {
        self.add(tile, self.fetch(tile))
    }
}
