//! The result of a row's reduction, and the number of columns as a divisor.
#[allow(unused_imports, reason = "named in documentation")]
use super::welford::Welford;

/// The statistics of a row. A norm computes `(x - mean) * inv` from them. For RMSNorm, `mean` is 0.
#[derive(Clone, Copy)]
pub(crate) struct Stats {
    pub mean: f32,
    pub inv: f32,
}

/// The number of columns of a row, by which a sum is divided to obtain a mean.
#[derive(Clone, Copy)]
pub(crate) struct Cols {
    pub count: f32,
    /// `1 / count`.
    pub inv: f32,
    /// `true` if the row consists of whole tiles (128 columns each). In this case, all lanes add the same
    /// number of elements.
    pub even: bool,
    /// `true` if the number of columns is a multiple of 4. This property selects the formula with which torch
    /// merges the means of two threads: see [`Welford::with`].
    pub by_fours: bool,
}
