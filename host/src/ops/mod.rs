//! One op, one file: checks of its arguments, its ladders, its launch.
pub mod add_rms_norm;
pub mod rms_norm;
