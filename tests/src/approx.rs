//! Reference values in f64, each with a bound for the error of a kernel that computes in f32. Each step of
//! the computation adds its rounding error to the bound.
use oxiwarp::{Dtype, Element, Norm};

use crate::compare::ulp;

/// A reference value, and the largest error that the value of a kernel may have.
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
/// A thread computes the mean of its elements with Welford's algorithm. The roundings of all these steps
/// contribute only 16 units, because later steps reduce the effect of earlier roundings. The kernel then
/// merges the means of the threads, in up to eight steps. A merge multiplies by a count and by an approximate
/// reciprocal, with an error of 4 units, so eight merges contribute 32 units.
///
/// An error of the mean changes every `x - mean` of the row by the same amount. It changes the variance by at
/// most this amount.
const LAYER: f64 = 48.0;
/// Returns the relative error bound of `x * inv_rms`, in units of 2^-24.
///
/// The mean, `rsqrt.approx` and the product contribute 4 units. A thread has four sums and adds `cols / 128`
/// squares to each. Adding a square to a much larger sum loses the last bits of the square. For 262,144
/// columns, this error is up to an estimated 45 units.
fn rms(cols: usize) -> f64 {
    12.0 + cols as f64 / 2048.0
}

/// Returns the normalized rows. Each value has an error bound for a computation in f32.
///
/// The bound of LayerNorm grows with the ratio of a row's mean to its standard deviation. If a kernel
/// computed the variance as `E[x²] - E[x]²`, its error would grow with the square of this ratio and exceed
/// the bound.
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

/// Panics if the error of an element exceeds the bound of its reference value. The message names the element
/// with the largest ratio of error to bound.
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
