//! Launch configurations, tried out: those that an op could take, checked, then timed beside the one that it takes.
mod results;
mod trial;

pub use trial::{Checks, Trial, Verdict};
