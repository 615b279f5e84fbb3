//! The rows `x + gate * y`: a residual branch that comes back.
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::io::Source;
use super::known_form::RoundEach;
use super::operand::{Modulation, zip};
use super::operand_forms::ModulationSource;
use super::row_context::RowContext;

/// The operands of a gated residual and how they are combined: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatedResidualArg {
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

/// `value` within what f16 can hold: an infinity too; a NaN stays one.
#[inline(always)]
#[allow(clippy::manual_clamp, reason = "`clamp` is `max` and `min`, which turn a NaN into a number on a GPU")]
pub(crate) fn clamped(value: f32) -> f32 {
    if value > 65504.0 {
        65504.0
    } else if value < -65504.0 {
        -65504.0
    } else {
        value
    }
}

/// A warp's row of a [`GatedResidualArg`], to be normalised: both of what it is the sum of are on their way at once.
#[derive(Clone, Copy)]
pub(crate) struct GatedRow<T, F, A> {
    x: Vec4Row<T, A>,
    y: Vec4Row<T, A>,
    gate: F,
    sum: Vec4RowMut<T, A>,
    /// Where `y` waits; `x`, and then the sum, wait where rows do.
    branch: SharedRow<T>,
    round_each: bool,
    clip: bool,
}

impl<T: Elem, F: ModulationSource<T>, A: Access> GatedRow<T, F, A> {
    /// # Safety
    /// As [`Vec4Row::of`] for each operand; those that the launch stages are `Rows::is_vector` if it says so.
    /// The gate is of the form `F`; in forms that are known when the kernel is compiled nothing is clipped,
    /// and the product rounded as the norm's steps are.
    #[inline(always)]
    pub unsafe fn of(gated: &GatedResidualArg, row: &RowContext<T, A>, rounds: impl RoundEach) -> Self {
        let (at, columns) = (row.at, row.columns);
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                x: Vec4Row::of(&gated.x, at, columns),
                y: Vec4Row::of(&gated.y, at, columns),
                gate: F::of(&gated.gate, at, columns),
                sum: Vec4RowMut::of(&gated.sum, at, columns),
                branch: row.another_row(),
                round_each: if F::GROUPED { rounds.get() } else { gated.round_each != 0 },
                clip: !F::GROUPED && gated.clip != 0,
            }
        }
    }

    /// The thread's sum of `tile`, written.
    #[inline(always)]
    fn add(&self, tile: u32, [x, y]: [Vec4<T>; 2], gate: F::Fetched) -> Vec4<T> {
        let mut total = if self.round_each {
            x.plus(if self.gate.exists() { y.times(F::vec4(gate)) } else { y })
        } else {
            let mut branch = y.lanes();
            if self.gate.exists() {
                branch = zip(F::lanes(gate), branch, |gate, y| gate * y);
            }
            Vec4::from_lanes(zip(x.lanes(), branch, |x, branch| x + branch))
        };
        if self.clip {
            total = Vec4::from_lanes(total.lanes().map(clamped));
        }
        self.sum.put(tile, total);
        total
    }
}

impl<T: Elem, F: ModulationSource<T>, A: Access> Source<T, A> for GatedRow<T, F, A> {
    type Parts = ([Vec4<T>; 2], F::Fetched);
    const NOTHING: Self::Parts = ([Vec4::ZERO; 2], F::EMPTY);

    #[inline(always)]
    fn stage(&self, row: &RowContext<T, A>) {
        let packs = row.p.packs != 0;
        self.x.copy_to(&row.staged, packs);
        self.y.copy_to(&self.branch, packs);
        row.staged.wait();
    }
    #[inline(always)]
    fn parts(&self, row: &RowContext<T, A>, tile: u32) -> Self::Parts {
        let gate = self.gate.fetch(tile);
        let parts = if row.has_room() {
            [row.staged.get(tile), self.branch.get(tile)]
        } else {
            [self.x.get(tile), self.y.get(tile)]
        };
        (parts, gate)
    }
    #[inline(always)]
    fn make(&self, row: &RowContext<T, A>, tile: u32, (parts, gate): Self::Parts) -> Vec4<T> {
        let total = self.add(tile, parts, gate);
        if row.has_room() {
            row.staged.put(tile, total);
        }
        total
    }
    #[inline(always)]
    fn again(&self, tile: u32) -> Vec4<T> {
        self.sum.written(tile)
    }
}
