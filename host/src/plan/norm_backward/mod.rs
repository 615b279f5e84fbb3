//! The gradients of norms: what is checked, how their rows are shared out among blocks, and the two launches.
mod columns;
mod launch;
mod plan;

pub use columns::ParameterGradients;
pub(crate) use launch::{Given, NormOp};
pub use plan::norm_backward_workspace;
