//! One op, one file: checks of its arguments, its ladders, its launch.
pub mod add_rms_norm;
pub mod rms_norm;
pub mod softmax;

/// Every op by name.
pub const NAMES: &[&str] = &["rms_norm", "add_rms_norm", "softmax"];
