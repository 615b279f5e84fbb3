//! Checks the launch configurations of an op: runs each configuration and compares its results with expected
//! values.
mod results;
mod trial;

pub use trial::{Checks, Trial, Verdict};
