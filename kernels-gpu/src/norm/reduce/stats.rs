//! What a reduction of a row gives, and what it divides by.
#[allow(unused_imports, reason = "named in documentation")]
use super::welford::Welford;

/// What a row is normalised with: `(x - mean) * inv`.
#[derive(Clone, Copy)]
pub(crate) struct Stats {
    pub mean: f32,
    pub inv: f32,
}

/// A row's columns as numbers: what is divided by.
#[derive(Clone, Copy)]
pub(crate) struct Cols {
    pub count: f32,
    /// `1 / count`.
    pub inv: f32,
    /// Do whole tiles fill the row, so that every thread has seen as many elements of each of torch's warps?
    pub even: bool,
    /// Is their number a multiple of 4? See [`Welford::with`].
    pub by_fours: bool,
}
