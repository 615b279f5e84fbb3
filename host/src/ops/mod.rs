//! One op, one file: checks of its arguments, its ladders, its launch.
pub mod ada_norm;
pub mod add_rms_norm;
pub mod gated_residual;
pub mod gated_residual_ada_norm;
pub mod layer_norm;
pub mod qk_norm_rope;
pub mod rms_norm;
pub mod rope;

/// Every op by name.
pub const NAMES: &[&str] = &[
    "ada_norm",
    "add_rms_norm",
    "gated_residual",
    "gated_residual_ada_norm",
    "layer_norm",
    "qk_norm_rope",
    "rms_norm",
    "rope",
];
