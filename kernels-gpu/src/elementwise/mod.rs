//! Activation functions, and the partition of element-wise operands among threads.
pub mod activations;
pub(crate) mod approx16;
mod constants;
pub(crate) mod functions;
pub mod partition;
pub(crate) mod rounded_chain;
