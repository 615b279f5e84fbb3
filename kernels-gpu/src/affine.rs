//! What follows a norm's reduction: weight and bias, then scale and shift.
use cuda_std::prelude::*;
use cuda_std::quad::round;

use crate::moments::{FusedRms, LayerNorm, MeanSquare, Moments, Stats};
use crate::operand::{Modulation, ModulationRow, Operand, OperandRow, zip};

/// The parameters of a norm: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Affine {
    /// Multiplies the normalised value.
    pub weight: Operand,
    /// Added after that.
    pub bias: Operand,
}

/// Scale and shift of a norm: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaleShift {
    /// `1 + scale` multiplies the norm.
    pub scale: Modulation,
    /// Added after that.
    pub shift: Modulation,
}

/// One modulated result: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Modulated {
    /// What modulates it.
    pub by: ScaleShift,
    /// Where it goes.
    pub y: Rows,
}

/// A norm whose weight and bias are applied as the module does that it stands for.
pub(crate) trait Norm: Moments {
    /// The normalised `x`, times `weight`, plus `bias`; rounded as the module's own kernels do if `round_each`.
    fn apply<T: Elem>(
        stats: Stats,
        x: [f32; 4],
        weight: Option<[f32; 4]>,
        bias: Option<[f32; 4]>,
        round_each: bool,
    ) -> [f32; 4];
}

#[inline(always)]
fn normalized(stats: Stats, x: [f32; 4]) -> [f32; 4] {
    x.map(|x| stats.inv * (x - stats.mean))
}

#[inline(always)]
fn round_if<T: Elem>(wanted: bool, lanes: [f32; 4]) -> [f32; 4] {
    if wanted { round::<T>(lanes) } else { lanes }
}

/// One kernel of torch does all: one rounding at its end.
#[inline(always)]
fn in_one_kernel<T: Elem>(
    n: [f32; 4],
    weight: Option<[f32; 4]>,
    bias: Option<[f32; 4]>,
    round_each: bool,
) -> [f32; 4] {
    let lanes = match (weight, bias) {
        (Some(weight), Some(bias)) => [0, 1, 2, 3].map(|i: usize| fma(weight[i], n[i], bias[i])),
        (Some(weight), None) => zip(weight, n, |weight, n| weight * n),
        (None, Some(bias)) => zip(n, bias, |n, bias| n + bias),
        (None, None) => n,
    };
    round_if::<T>(round_each, lanes)
}

impl Norm for LayerNorm {
    #[inline(always)]
    fn apply<T: Elem>(
        stats: Stats,
        x: [f32; 4],
        weight: Option<[f32; 4]>,
        bias: Option<[f32; 4]>,
        round_each: bool,
    ) -> [f32; 4] {
        in_one_kernel::<T>(normalized(stats, x), weight, bias, round_each)
    }
}

impl Norm for FusedRms {
    #[inline(always)]
    fn apply<T: Elem>(
        stats: Stats,
        x: [f32; 4],
        weight: Option<[f32; 4]>,
        bias: Option<[f32; 4]>,
        round_each: bool,
    ) -> [f32; 4] {
        in_one_kernel::<T>(normalized(stats, x), weight, bias, round_each)
    }
}

impl Norm for MeanSquare {
    /// An operator for each step, as in diffusers' `RMSNorm`.
    #[inline(always)]
    fn apply<T: Elem>(
        stats: Stats,
        x: [f32; 4],
        weight: Option<[f32; 4]>,
        bias: Option<[f32; 4]>,
        round_each: bool,
    ) -> [f32; 4] {
        let mut lanes = round_if::<T>(round_each, normalized(stats, x));
        if let Some(weight) = weight {
            lanes = round_if::<T>(round_each, zip(lanes, weight, |n, weight| n * weight));
        }
        if let Some(bias) = bias {
            lanes = round_if::<T>(round_each, zip(lanes, bias, |n, bias| n + bias));
        }
        lanes
    }
}

/// A thread's columns of an [`Affine`].
#[derive(Clone, Copy)]
pub(crate) struct AffineRow<T, const VECTOR: bool> {
    weight: OperandRow<T, VECTOR>,
    bias: OperandRow<T, VECTOR>,
}

impl<T: Elem, const VECTOR: bool> AffineRow<T, VECTOR> {
    /// # Safety
    /// As [`OperandRow::of`]; both are one row.
    #[inline(always)]
    pub unsafe fn of(affine: &Affine, columns: QuadColumns) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                weight: OperandRow::of(&affine.weight, RowAt::FIRST, columns),
                bias: OperandRow::of(&affine.bias, RowAt::FIRST, columns),
            }
        }
    }

    /// Weight and bias at `tile`; where there is none, what changes nothing, not even the sign of a zero.
    #[inline(always)]
    pub fn parameters(&self, tile: u32) -> ([f32; 4], [f32; 4]) {
        (self.weight.lanes(tile).unwrap_or([1.0; 4]), self.bias.lanes(tile).unwrap_or([-0.0; 4]))
    }

    /// The norm of `x`, the thread's quad of `tile`.
    #[inline(always)]
    pub fn apply<N: Norm>(&self, tile: u32, stats: Stats, x: Quad<T>, round_each: bool) -> [f32; 4] {
        N::apply::<T>(stats, x.lanes(), self.weight.lanes(tile), self.bias.lanes(tile), round_each)
    }
}

/// A thread's columns of a [`ScaleShift`].
#[derive(Clone, Copy)]
pub(crate) struct ScaleShiftRow<T, const VECTOR: bool> {
    scale: ModulationRow<T, VECTOR>,
    shift: ModulationRow<T, VECTOR>,
}

impl<T: Elem, const VECTOR: bool> ScaleShiftRow<T, VECTOR> {
    /// # Safety
    /// As [`ModulationRow::of`].
    #[inline(always)]
    pub unsafe fn of(modulate: &ScaleShift, at: RowAt, columns: QuadColumns) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                scale: ModulationRow::of(&modulate.scale, at, columns),
                shift: ModulationRow::of(&modulate.shift, at, columns),
            }
        }
    }

    /// `n * (1 + scale) + shift`, rounded once here or after each of the three steps.
    #[inline(always)]
    pub fn apply(&self, tile: u32, n: [f32; 4], round_each: bool) -> Quad<T> {
        let mut lanes = n;
        if let Some(scale) = self.scale.lanes(tile) {
            let factor = round_if::<T>(round_each, scale.map(|scale| 1.0 + scale));
            lanes = round_if::<T>(round_each, zip(lanes, factor, |n, factor| n * factor));
        }
        if let Some(shift) = self.shift.lanes(tile) {
            lanes = zip(lanes, shift, |n, shift| n + shift);
        }
        Quad::from_lanes(lanes)
    }
}
