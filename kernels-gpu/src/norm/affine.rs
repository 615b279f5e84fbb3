//! Weight and bias of a norm, and the kernel arguments for its scale and shift.
//!
//! A norm computes `y = (norm(x) * weight + bias) * (1 + scale) + shift`. Weight, bias, scale and shift may
//! each be absent.
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::operand::{Modulation, Operand, OperandRow, zip};
use super::operand_forms::Dense;
use super::reduce::stats::Stats;
use super::reduce::warp::{FusedMeanSquare, LayerNorm, MeanSquare, Moments};

/// Weight and bias of a norm: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Affine {
    /// Factor of the normalised value.
    pub weight: Operand,
    /// Value added after the multiplication.
    pub bias: Operand,
}

impl Affine {
    /// Returns weight and bias.
    pub const fn operands(&self) -> [&Operand; 2] {
        [&self.weight, &self.bias]
    }
}

impl ScaleShift {
    /// Returns the values and tables of scale and shift.
    pub const fn operands(&self) -> [&Operand; 4] {
        let Self { scale, shift } = self;
        [&scale.value, &scale.table, &shift.value, &shift.table]
    }
}

/// Scale and shift: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaleShift {
    /// The scale. The result of the norm is multiplied by `1 + scale`.
    pub scale: Modulation,
    /// Value added after the multiplication.
    pub shift: Modulation,
}

/// Kernel argument: one output `y = norm(x) * (1 + scale) + shift`, with its scale and shift.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Modulated {
    /// Scale and shift of this output.
    pub by: ScaleShift,
    /// The output.
    pub y: Rows,
}

/// A norm: LayerNorm or RMSNorm. A norm applies weight and bias with the same order of operations as the
/// torch module that the norm replaces.
pub(crate) trait Norm: Moments {
    /// Normalises `x`, multiplies by `weight` and adds `bias`, in f32.
    fn apply(stats: Stats, x: [f32; 4], weight: Option<[f32; 4]>, bias: Option<[f32; 4]>) -> [f32; 4];
    /// Normalises `x`, multiplies by `weight` and adds `bias`. Rounds to `T` after the same steps as the
    /// torch module that this norm replaces.
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
    /// This method rounds once, because torch computes LayerNorm in one kernel, which rounds once.
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
    /// Many torch modules implement RMSNorm with one operator per step, and each operator rounds its result.
    /// This method rounds after the same steps.
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

impl Norm for FusedMeanSquare {
    #[inline(always)]
    fn apply(stats: Stats, x: [f32; 4], weight: Option<[f32; 4]>, bias: Option<[f32; 4]>) -> [f32; 4] {
        MeanSquare::apply(stats, x, weight, bias)
    }
    /// This method rounds once, as `torch.nn.RMSNorm` does.
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

/// A loader for weight and bias. [`AffineRow`] tests their dtypes at run time. [`DenseAffine`] fixes the
/// dtypes at compile time. The type `()` is for norms without weight and bias.
pub(crate) trait Parameters: Copy {
    /// `true` if the dtypes are compile-time constants. In this case, no branch separates the loads of
    /// several vec4s (four elements each), so these loads are in flight together.
    const GROUPED: bool;
    /// The loaded weight and bias of one vec4 (four columns).
    type Fetched: Copy;
    /// Initial value of a `Fetched` variable that is not loaded yet.
    const EMPTY: Self::Fetched;
    /// Returns a loader for the thread's `columns` of weight and bias.
    ///
    /// # Safety
    /// The requirements of [`OperandRow::of`] apply. Weight and bias have one row each. Weight and bias have
    /// the dtypes that `Self` expects. If `Self` expects that both are present, both are present.
    unsafe fn of(affine: &Affine, columns: Vec4Columns) -> Self;
    /// Loads weight and bias for the thread's columns of `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// Converts the loaded weight and bias to f32. If weight or bias is absent, its value in the result is
    /// `None`.
    fn values(&self, fetched: Self::Fetched) -> (Option<[f32; 4]>, Option<[f32; 4]>);
    /// Loads weight and bias for the thread's columns of `tile`, and converts them to f32.
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

/// Weight and bias, for the columns of the calling thread. The dtypes of weight and bias are tested at run
/// time.
#[derive(Clone, Copy)]
pub(crate) struct AffineRow<T, A> {
    weight: OperandRow<T, A>,
    bias: OperandRow<T, A>,
}

impl<T: Elem, A: Access> AffineRow<T, A> {
    /// Returns a loader for the thread's `columns` of weight and bias.
    ///
    /// # Safety
    /// The requirements of [`OperandRow::of`] apply. Weight and bias have one row each.
    #[inline(always)]
    pub unsafe fn of(affine: &Affine, columns: Vec4Columns) -> Self {
        // SAFETY: the loaders read this thread's columns of weight and bias. The caller guarantees that each
        // of the two has one readable row with these columns.
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
        // SAFETY: the loaders read this thread's columns of weight and bias. The caller guarantees that each
        // of the two has one readable row with these columns.
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

/// Weight and bias with elements of type `E`, for the columns of the calling thread. If `BOTH` is true,
/// weight and bias are both present. Otherwise, each of them may be absent.
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
        // SAFETY: the loaders read rows of weight and bias as type `E`. The caller guarantees that each of
        // the two, if it is present, has one readable row with elements of this type.
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
