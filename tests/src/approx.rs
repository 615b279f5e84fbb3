//! Reference values in f64, each with an error bound for a kernel that computes in f32. The bound grows with
//! each step of the computation.
use oxiwarp::{Dtype, Element, Norm};

use crate::compare::ulp;

/// A reference value with the largest error that a kernel's value may have.
#[derive(Clone, Copy, Debug)]
pub struct Approx {
    /// The value without any rounding.
    pub value: f64,
    /// Upper bound of the rounding errors so far.
    pub error: f64,
}

impl Approx {
    /// Makes a value that the kernel reads without an error.
    pub fn exact(value: f64) -> Self {
        Self { value, error: 0.0 }
    }

    /// Returns the product, rounded to f32.
    pub fn times(self, other: Self) -> Self {
        let error =
            self.value.abs() * other.error + other.value.abs() * self.error + self.error * other.error;
        Self { value: self.value * other.value, error }.rounded(Dtype::F32)
    }

    /// Returns the sum, rounded to f32.
    pub fn plus(self, other: Self) -> Self {
        Self { value: self.value + other.value, error: self.error + other.error }.rounded(Dtype::F32)
    }

    /// Returns the value rounded to `dtype`.
    pub fn rounded(self, dtype: Dtype) -> Self {
        Self { error: self.error + 0.5 * ulp(dtype, self.value.abs() + self.error), ..self }
    }
}

/// Error bound of a row's mean and variance in f32, in units of 2^-24.
///
/// The steps of Welford's algorithm contribute 16 units. Each step rounds its result, and later steps reduce
/// the effect of this rounding. A row also has eight merges of two means, which contribute 32 units. Each
/// merge multiplies by a count and an approximate reciprocal, with an error of four units.
///
/// An error of the mean shifts `x - mean` by the same amount. This shift changes the variance by at most the
/// same amount.
const LAYER: f64 = 48.0;
/// Returns the error bound of `x * inv_rms`, in units of 2^-24.
///
/// The mean, `rsqrt.approx` and the product contribute 4 units. A thread adds `cols / 128` squares to each of
/// four sums. If a sum is large, the addition drops the last bits of each square. The estimate of this error
/// is up to 45 units for 262,144 columns.
fn rms(cols: usize) -> f64 {
    12.0 + cols as f64 / 2048.0
}

/// Returns the normalized rows, each value with its error bound for f32.
///
/// The bound of LayerNorm grows with the ratio of a row's mean to its standard deviation. If kernels used the
/// formula `E[x²] - E[x]²` for the variance, their error would grow with the square of this ratio.
pub fn normed(x: &[f64], cols: usize, norm: Norm, eps: f32) -> Vec<Approx> {
    let unit = 2.0_f64.powi(-24);
    let row = |row: &[f64]| {
        let layer = norm == Norm::Layer;
        let mean = if layer { row.iter().sum::<f64>() / cols as f64 } else { 0.0 };
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / cols as f64;
        let inv = 1.0 / (variance + f64::from(eps)).sqrt();
        let one = |x: &f64| {
            let value = (x - mean) * inv;
            let (magnitude, units) = if layer {
                ((1.0 + mean.abs() * inv) * (1.0 + value.abs()), LAYER)
            } else {
                (value.abs(), rms(cols))
            };
            Approx { value, error: unit * units * magnitude }
        };
        row.iter().map(one).collect::<Vec<_>>()
    };
    x.chunks(cols).flat_map(row).collect()
}

/// Panics if the error of an element exceeds the bound of its reference. The message names the worst element.
#[track_caller]
pub fn close<T: Element>(got: &[T], expected: &[Approx], cols: usize) {
    assert_eq!(got.len(), expected.len());
    let excess = |at: usize| {
        let Approx { value, error } = expected[at];
        let off = (f64::from(got[at].to_f32()) - value).abs();
        if off == 0.0 {
            0.0
        } else if off.is_nan() {
            f64::INFINITY
        } else {
            off / error
        }
    };
    let Some(worst) = (0..got.len()).max_by(|a, b| excess(*a).total_cmp(&excess(*b))) else { return };
    let Approx { value, error } = expected[worst];
    assert!(
        excess(worst) <= 1.0,
        "row {}, column {}: {:?}, expected {value:e} within {error:e}: {:.2} times as far",
        worst / cols,
        worst % cols,
        got[worst],
        excess(worst),
    );
}
