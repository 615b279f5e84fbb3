//! What follows a norm's reduction: weight and bias, then scale and shift.
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::operand::{Modulation, Operand, OperandRow, zip};
use super::operand_forms::Dense;
use super::reduce::stats::Stats;
use super::reduce::warp::{LayerNorm, MeanSquare, Moments};

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
    ) -> Vec4<T>;
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
    ) -> Vec4<T> {
        Vec4::from_lanes(Self::apply(stats, x, weight, bias))
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
    ) -> Vec4<T> {
        let mut vec4 = Vec4::from_lanes(normalized(stats, x));
        if let Some(weight) = weight {
            vec4 = vec4.times(Vec4::from_lanes(weight));
        }
        if let Some(bias) = bias {
            vec4 = vec4.plus(Vec4::from_lanes(bias));
        }
        vec4
    }
}

/// Weight and bias of a norm: none where the form says so, so that no quad asks.
pub(crate) trait Parameters: Copy {
    /// Are they read without a question asked, so that many can be on their way?
    const GROUPED: bool;
    /// What is read of a quad.
    type Fetched: Copy;
    /// Nothing yet.
    const EMPTY: Self::Fetched;
    /// The thread's columns of them.
    ///
    /// # Safety
    /// As [`OperandRow::of`]; both are one row, of the form that this is for.
    unsafe fn of(affine: &Affine, columns: Vec4Columns) -> Self;
    /// Reads the thread's part of `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// Weight and bias.
    fn values(&self, fetched: Self::Fetched) -> (Option<[f32; 4]>, Option<[f32; 4]>);
    /// Weight and bias of `tile`.
    #[inline(always)]
    fn lanes(&self, tile: u32) -> (Option<[f32; 4]>, Option<[f32; 4]>) {
        self.values(self.fetch(tile))
    }
}

impl Parameters for () {
    const GROUPED: bool = true;
    type Fetched = ();
    const EMPTY: () = ();
    #[inline(always)]
    unsafe fn of(_: &Affine, _: Vec4Columns) -> Self {}
    #[inline(always)]
    fn fetch(&self, _: u32) {}
    #[inline(always)]
    fn values(&self, (): ()) -> (Option<[f32; 4]>, Option<[f32; 4]>) {
        (None, None)
    }
}

/// A thread's columns of weight and bias of any type.
#[derive(Clone, Copy)]
pub(crate) struct AffineRow<T, A> {
    weight: OperandRow<T, A>,
    bias: OperandRow<T, A>,
}

impl<T: Elem, A: Access> AffineRow<T, A> {
    /// # Safety
    /// As [`OperandRow::of`]; both are one row.
    #[inline(always)]
    pub unsafe fn of(affine: &Affine, columns: Vec4Columns) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Self {
                weight: OperandRow::of(&affine.weight, RowIndex::FIRST, columns),
                bias: OperandRow::of(&affine.bias, RowIndex::FIRST, columns),
            }
        }
    }
}

impl<T: Elem, A: Access> Parameters for AffineRow<T, A> {
    const GROUPED: bool = false;
    type Fetched = (Option<[f32; 4]>, Option<[f32; 4]>);
    const EMPTY: Self::Fetched = (None, None);
    #[inline(always)]
    unsafe fn of(affine: &Affine, columns: Vec4Columns) -> Self {
        // SAFETY: as the caller promises.
        unsafe { Self::of(affine, columns) }
    }
    #[inline(always)]
    fn fetch(&self, tile: u32) -> Self::Fetched {
        (self.weight.lanes(tile), self.bias.lanes(tile))
    }
    #[inline(always)]
    fn values(&self, fetched: Self::Fetched) -> Self::Fetched {
        fetched
    }
}

/// A thread's columns of weight and bias of one type, `E`. `BOTH`: both are there.
#[derive(Clone, Copy)]
pub(crate) struct DenseAffine<E, A, const BOTH: bool> {
    weight: Dense<E, A>,
    bias: Dense<E, A>,
}

impl<E: Elem, A: Access, const BOTH: bool> Parameters for DenseAffine<E, A, BOTH> {
    const GROUPED: bool = true;
    type Fetched = [Vec4<E>; 2];
    const EMPTY: [Vec4<E>; 2] = [Vec4::ZERO; 2];
    #[inline(always)]
    unsafe fn of(affine: &Affine, columns: Vec4Columns) -> Self {
        // SAFETY: as the caller promises.
        let [weight, bias] = [&affine.weight, &affine.bias]
            .map(|operand| unsafe { Dense::of_operand(operand, RowIndex::FIRST, columns) });
        Self { weight: weight.assume_present_if(BOTH), bias: bias.assume_present_if(BOTH) }
    }
    #[inline(always)]
    fn fetch(&self, tile: u32) -> [Vec4<E>; 2] {
        [self.weight.get(tile), self.bias.get(tile)]
    }
    #[inline(always)]
    fn values(&self, [weight, bias]: [Vec4<E>; 2]) -> (Option<[f32; 4]>, Option<[f32; 4]>) {
        (self.weight.exists.then(|| weight.lanes()), self.bias.exists.then(|| bias.lanes()))
    }
}
