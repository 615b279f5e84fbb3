//! The type of a test.
use oxiwarp::Device;

/// A test of one kernel on one device: its name, and what runs it.
pub type Test = (&'static str, fn(&Device));
