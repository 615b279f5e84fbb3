//! The result of a row's reduction, and the number of columns as a divisor.
#[allow(unused_imports, reason = "named in documentation")]
use super::welford::Welford;

/// The statistics of a row, which is normalised as `(x - mean) * inv`. RMSNorm has `mean` 0.
#[derive(Clone, Copy)]
pub(crate) struct Stats {
    pub mean: f32,
    pub inv: f32,
}

/// The number of columns of a row, as the divisor for means.
#[derive(Clone, Copy)]
pub(crate) struct Cols {
    pub count: f32,
    /// `1 / count`.
    pub inv: f32,
    /// `true` if whole tiles fill the row. Then all lanes have added equally many elements to a given
    /// accumulator.
    pub even: bool,
    /// `true` if the number of columns is a multiple of 4. It selects the formula in [`Welford::with`].
    pub by_fours: bool,
}
