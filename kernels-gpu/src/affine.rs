//! What follows a norm's reduction: weight and bias, then scale and shift.
use cuda_std::prelude::*;

use crate::moments::{LayerNorm, MeanSquare, Moments, Stats};
use crate::operand::{Modulation, Operand, OperandRow, zip};
use crate::passes::Sink;
use crate::side::Form;

/// The parameters of a norm: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Affine {
    /// Multiplies the normalised value.
    pub weight: Operand,
    /// Added after that.
    pub bias: Operand,
}

/// Scale and shift: a kernel argument.
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
    /// The normalised `x`, times `weight`, plus `bias`, in f32.
    fn apply(stats: Stats, x: [f32; 4], weight: Option<[f32; 4]>, bias: Option<[f32; 4]>) -> [f32; 4];
    /// The same, rounded where the module's own kernels round.
    fn rounded<T: Elem>(
        stats: Stats,
        x: [f32; 4],
        weight: Option<[f32; 4]>,
        bias: Option<[f32; 4]>,
    ) -> Quad<T>;
}

#[inline(always)]
fn normalized(stats: Stats, x: [f32; 4]) -> [f32; 4] {
    x.map(|x| stats.inv * (x - stats.mean))
}

impl Norm for LayerNorm {
    #[inline(always)]
    fn apply(stats: Stats, x: [f32; 4], weight: Option<[f32; 4]>, bias: Option<[f32; 4]>) -> [f32; 4] {
        let n = normalized(stats, x);
        match (weight, bias) {
            (Some(weight), Some(bias)) => [0, 1, 2, 3].map(|i: usize| fma(weight[i], n[i], bias[i])),
            (Some(weight), None) => zip(weight, n, |weight, n| weight * n),
            (None, Some(bias)) => zip(n, bias, |n, bias| n + bias),
            (None, None) => n,
        }
    }
    /// One kernel of torch does all.
    #[inline(always)]
    fn rounded<T: Elem>(
        stats: Stats,
        x: [f32; 4],
        weight: Option<[f32; 4]>,
        bias: Option<[f32; 4]>,
    ) -> Quad<T> {
        Quad::from_lanes(Self::apply(stats, x, weight, bias))
    }
}

impl Norm for MeanSquare {
    #[inline(always)]
    fn apply(stats: Stats, x: [f32; 4], weight: Option<[f32; 4]>, bias: Option<[f32; 4]>) -> [f32; 4] {
        let mut lanes = normalized(stats, x);
        if let Some(weight) = weight {
            lanes = zip(lanes, weight, |n, weight| n * weight);
        }
        if let Some(bias) = bias {
            lanes = zip(lanes, bias, |n, bias| n + bias);
        }
        lanes
    }
    /// An operator for each step.
    #[inline(always)]
    fn rounded<T: Elem>(
        stats: Stats,
        x: [f32; 4],
        weight: Option<[f32; 4]>,
        bias: Option<[f32; 4]>,
    ) -> Quad<T> {
        let mut quad = Quad::from_lanes(normalized(stats, x));
        if let Some(weight) = weight {
            quad = quad.times(Quad::from_lanes(weight));
        }
        if let Some(bias) = bias {
            quad = quad.plus(Quad::from_lanes(bias));
        }
        quad
    }
}

/// A thread's columns of an [`Affine`].
#[derive(Clone, Copy)]
pub(crate) struct AffineRow<T, const ACCESS: u32> {
    weight: OperandRow<T, ACCESS>,
    bias: OperandRow<T, ACCESS>,
}

impl<T: Elem, const ACCESS: u32> AffineRow<T, ACCESS> {
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
}

/// Weight and bias of a norm that is modulated: none where the form says so, so that no quad asks.
pub(crate) trait Parameters: Copy {
    /// Weight and bias of `tile`.
    fn lanes(&self, tile: u32) -> (Option<[f32; 4]>, Option<[f32; 4]>);
}

impl Parameters for () {
    #[inline(always)]
    fn lanes(&self, _: u32) -> (Option<[f32; 4]>, Option<[f32; 4]>) {
        (None, None)
    }
}

impl<T: Elem, const ACCESS: u32> Parameters for AffineRow<T, ACCESS> {
    #[inline(always)]
    fn lanes(&self, tile: u32) -> (Option<[f32; 4]>, Option<[f32; 4]>) {
        (self.weight.lanes(tile), self.bias.lanes(tile))
    }
}

/// Is the result rounded after each step? Known when the kernel is compiled, or looked up.
pub(crate) trait RoundEach: Copy {
    /// The answer.
    fn get(self) -> bool;
}

#[derive(Clone, Copy)]
pub(crate) struct Rounds<const EACH: bool>;

impl<const EACH: bool> RoundEach for Rounds<EACH> {
    #[inline(always)]
    fn get(self) -> bool {
        EACH
    }
}

impl RoundEach for bool {
    #[inline(always)]
    fn get(self) -> bool {
        self
    }
}

/// `y = norm * (1 + scale) + shift`, once or twice, as the second pass of a norm.
#[derive(Clone, Copy)]
pub(crate) struct Modulate<T, N, F, A, R, const OUTPUTS: usize, const ACCESS: u32> {
    stats: Stats,
    affine: A,
    outputs: [(F, F, QuadRowMut<T, ACCESS>); OUTPUTS],
    round_each: R,
    norm: core::marker::PhantomData<N>,
}

impl<T: Elem, N: Norm, F: Form<T>, A: Parameters, R: RoundEach, const OUTPUTS: usize, const ACCESS: u32>
    Modulate<T, N, F, A, R, OUTPUTS, ACCESS>
{
    /// # Safety
    /// As [`Form::of`] for scales and shifts, as [`QuadRowMut::of`] for each `y`.
    #[inline(always)]
    pub unsafe fn of(
        stats: Stats,
        affine: A,
        outputs: [Modulated; OUTPUTS],
        at: RowAt,
        columns: QuadColumns,
        round_each: R,
    ) -> Self {
        // SAFETY: as the caller promises.
        let outputs = outputs.map(|Modulated { by, y }| unsafe {
            (
                F::of(&by.scale, at, columns),
                F::of(&by.shift, at, columns),
                QuadRowMut::<T, ACCESS>::of(&y, at, columns),
            )
        });
        Self { stats, affine, outputs, round_each, norm: core::marker::PhantomData }
    }
}

impl<T: Elem, N: Norm, F: Form<T>, A: Parameters, R: RoundEach, const OUTPUTS: usize, const ACCESS: u32>
    Sink<T> for Modulate<T, N, F, A, R, OUTPUTS, ACCESS>
{
    const GROUPED: bool = F::GROUPED && OUTPUTS == 1;
    type Fetched = [(F::Fetched, F::Fetched); OUTPUTS];
    const EMPTY: Self::Fetched = [(F::EMPTY, F::EMPTY); OUTPUTS];

    #[inline(always)]
    fn fetch(&self, tile: u32) -> Self::Fetched {
        let mut fetched = Self::EMPTY;
        for i in 0..OUTPUTS {
            let (scale, shift, _) = &self.outputs[i];
            fetched[i] = (scale.fetch(tile), shift.fetch(tile));
        }
        fetched
    }

    #[inline(always)]
    fn put(&self, tile: u32, quad: Quad<T>, fetched: Self::Fetched) {
        let (weight, bias) = self.affine.lanes(tile);
        let x = quad.lanes();
        if self.round_each.get() {
            let n = N::rounded::<T>(self.stats, x, weight, bias);
            for i in 0..OUTPUTS {
                let ((scale, shift), (_, has_shift, y)) = (fetched[i], &self.outputs[i]);
                let scaled = n.times(Quad::splat(1.0).plus(F::quad(scale)));
                y.put(tile, if has_shift.exists() { scaled.plus(F::quad(shift)) } else { scaled });
            }
        } else {
            let n = N::apply(self.stats, x, weight, bias);
            for i in 0..OUTPUTS {
                let ((scale, shift), (_, has_shift, y)) = (fetched[i], &self.outputs[i]);
                let scaled = zip(n, F::lanes(scale), |n, scale| n * (1.0 + scale));
                let shifted = zip(scaled, F::lanes(shift), |n, shift| n + shift);
                y.put(tile, Quad::from_lanes(if has_shift.exists() { shifted } else { scaled }));
            }
        }
    }
}
