//! Activation functions, and how the kernels of element-wise ops split their operands among threads.
pub mod activations;
pub(crate) mod approx16;
mod constants;
pub mod partition;
pub(crate) mod rounded_chain;
