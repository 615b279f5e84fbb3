//! `sum = x + gate * y`: the gated residual of a transformer block, as the input of a norm.
//!
//! The residual stream is `x`, and `y` is the output of attention or of the MLP. Without a gate,
//! `sum = x + y`.
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::broadcast_elements::BroadcastElements;
use super::io::Source;
use super::known_form::RoundEach;
use super::operand::{Modulation, zip};
use super::operand_forms::ModulationSource;
use super::row_context::RowContext;
use crate::elementwise::rounded_chain::RoundedVec;

/// The operands and rounding of a gated residual: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatedResidualArg {
    /// The residual stream.
    pub x: Rows,
    /// The output of the residual branch.
    pub y: Rows,
    /// The factor that multiplies `y`. The gate may be absent.
    pub gate: Modulation,
    /// The output.
    pub sum: Rows,
    /// 1 to round the product `gate * y` before the addition, as separate torch operators do. 0 to round only
    /// the sum.
    pub round_each: u32,
    /// 1: clamp the sum to the finite range of f16, ±65504. 0: do not clamp.
    pub clip: u32,
}

/// Clamps `value` to the finite range of f16, ±65504. Infinities are clamped too. NaN stays NaN.
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

/// Returns `x + gate * y`. If `round_each` is true, the product is rounded to `T` before the addition.
#[inline(always)]
pub(crate) fn gated_sum<T: Elem>(
    x: Pack<T>,
    y: Pack<T>,
    gate: BroadcastElements<T>,
    round_each: bool,
) -> Pack<T> {
    match gate {
        BroadcastElements::Same(gate) if round_each => {
            RoundedVec::of(x).plus(RoundedVec::of(gate).times(RoundedVec::of(y))).pack()
        }
        gate => {
            let product = gate.lanes().zip(y.lanes(), |gate, y| gate * y);
            let product = if round_each { RoundedVec::<T>::new(product).lanes() } else { product };
            Pack::from_lanes(x.lanes().zip(product, |x, product| x + product))
        }
    }
}

/// The row `x + gate * y` that the calling thread processes, as the input of a norm.
///
/// The loads of `x` and `y` are in flight together.
#[derive(Clone, Copy)]
pub(crate) struct GatedRow<T, F, A> {
    x: Vec4Row<T, A>,
    y: Vec4Row<T, A>,
    gate: F,
    sum: Vec4RowMut<T, A>,
    /// The copy of the row of `y` in shared memory. The row of `x` is in a second row of shared memory,
    /// `RowContext::staged`, where the sum later overwrites it.
    branch: SharedRow<T>,
    round_each: bool,
    clip: bool,
}

impl<T: Elem, F: ModulationSource<T>, A: Access> GatedRow<T, F, A> {
    /// Returns row `row.at` of the operands in `gated`.
    ///
    /// If `F` fixes the dtype of the gate at compile time (`F::GROUPED`), the sum is never clamped. `rounds`
    /// then decides whether the product `gate * y` is rounded. If `F` tests the dtype at run time,
    /// `gated.clip` and `gated.round_each` decide about clamping and rounding.
    ///
    /// # Safety
    /// The requirements of [`Vec4Row::of`] apply to each operand. If `row.p.packs` is 1, `x` and `y` allow
    /// 16-byte accesses (`Rows::is_vector`). The gate has the dtype that the loader `F` expects.
    #[inline(always)]
    pub unsafe fn of(gated: &GatedResidualArg, row: &RowContext<T, A>, rounds: impl RoundEach) -> Self {
        let (at, columns) = (row.at, row.columns);
        // SAFETY: the loaders access this thread's columns of the operands. The caller guarantees that the
        // rows of all operands have these columns. The gate has the dtype that the loader `F` expects.
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

    /// Computes `x + gate * y` for the thread's four columns of `tile`, writes this sum to global memory, and
    /// returns it.
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
