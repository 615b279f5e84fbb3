//! One op, one file: checks of its arguments, its ladders, its launch.
pub mod add_rms_norm;
pub mod cross_entropy;
pub mod cross_entropy_backward;
pub mod rms_norm;
pub mod softmax;
pub mod softmax_backward;

/// Every op by name.
pub const NAMES: &[&str] =
    &["rms_norm", "add_rms_norm", "softmax", "softmax_backward", "cross_entropy", "cross_entropy_backward"];
