//! Tries launch configurations: checks the results of each, and times the correct ones against the op's
//! default.
mod results;
mod trial;

pub use trial::{Checks, Trial, Verdict};
