//! The type of a kernel test.
use oxiwarp::Device;

/// A test of one kernel on one device: its name and its function.
pub type Test = (&'static str, fn(&Device));
