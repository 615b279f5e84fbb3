//! Launch configurations, tried out: those that an op could take, checked, then timed beside the one that it takes.
mod case;
mod choices;
mod norms;
mod operands;
mod ops;
mod results;
mod rows;
mod trial;

pub use case::Case;
pub use choices::Choices;
pub use operands::{Pool, Turn, Values, Width};
pub use ops::OPS;
pub use trial::{Checks, Trial, Verdict};

use oxiwarp::{Device, Result, Stream};

/// Results in f32, and how many.
#[derive(Clone, Copy, Debug)]
pub enum Singles {
    /// A number for each row.
    OfRows(usize),
    /// A number for each column: a sum over all rows.
    OfColumns(usize),
}

/// An op, for tensors of bf16.
pub struct Op {
    /// Its name, and what of it is tried.
    pub name: &'static str,
    /// Elements of each input for a row.
    pub reads: &'static [Width],
    /// Elements of each result for a row.
    pub writes: &'static [Width],
    /// Results in f32.
    pub singles: Singles,
    /// What there is to choose.
    pub choices: Choices,
    /// Columns of the rows that are measured.
    pub columns: &'static [usize],
    /// Are the results of a few rows of it within reach of the CPU executor?
    pub light: bool,
    /// Launches it.
    pub call: fn(&Device, Turn, Stream) -> Result<()>,
}
