//! References in f64 that know how far arithmetic in f32 may lie from them, step by step.
use oxiwarp::{Dtype, Element, Norm};

use crate::compare::ulp;

/// A value, and how far from it what a kernel has in its place may be.
#[derive(Clone, Copy, Debug)]
pub struct Approx {
    /// Without any rounding.
    pub value: f64,
    /// The most that roundings have cost so far.
    pub error: f64,
}

impl Approx {
    /// A number that the kernel reads as it is.
    pub fn exact(value: f64) -> Self {
        Self { value, error: 0.0 }
    }

    /// The product, rounded to f32.
    pub fn times(self, other: Self) -> Self {
        let error =
            self.value.abs() * other.error + other.value.abs() * self.error + self.error * other.error;
        Self { value: self.value * other.value, error }.rounded(Dtype::F32)
    }

    /// The sum, rounded to f32.
    pub fn plus(self, other: Self) -> Self {
        Self { value: self.value + other.value, error: self.error + other.error }.rounded(Dtype::F32)
    }

    /// Rounded to `dtype`.
    pub fn rounded(self, dtype: Dtype) -> Self {
        Self { error: self.error + 0.5 * ulp(dtype, self.value.abs() + self.error), ..self }
    }
}

/// What the moments of a row may lose in f32, in units of 2^-24.
///
/// Means: each of Welford's steps rounds, and the next steps shrink that, to 16 for a long row; the eight merges of two
/// means that every row goes through weigh them by a count and an approximate reciprocal, four units each, in the same
/// direction at worst: 32. A mean that is off by that moves `x - mean` by it in units of the mean, and the variance no
/// more than as much.
const LAYER: f64 = 48.0;
/// `x * inv` may be off by 4 units for the mean, `rsqrt.approx` and the product, and by those of the sum: a thread adds
/// `cols / 128` squares to each of its four, and a sum grown large drops the same last bits of most squares of 16-bit
/// values: estimated at up to 45 units in rows of 262,144 of them.
fn rms(cols: usize) -> f64 {
    12.0 + cols as f64 / 2048.0
}

/// The norm of every row, and how far f32 may be from it. `LayerNorm`'s grows with the mean of a row in units of its
/// spread; a sum of squares less the square of the sum would lose the square of that.
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

/// Panics, naming the worst element, unless each is as near as its reference says.
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
