//! One op, one file: checks of its arguments, its ladders, its launch.
pub mod activation;
pub mod activation_backward;
pub mod add_rms_norm;
pub mod gated_activation;
pub mod gated_activation_backward;
pub mod rms_norm;

/// Every op by name.
pub const NAMES: &[&str] = &[
    "rms_norm",
    "add_rms_norm",
    "activation",
    "activation_backward",
    "gated_activation",
    "gated_activation_backward",
];
