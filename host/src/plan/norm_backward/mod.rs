//! Backward passes of the norms: checks, division of the rows among blocks, and the two launches.
mod columns;
mod launch;
mod plan;

pub use columns::ParameterGradients;
pub(crate) use launch::{Given, NormOp};
pub use plan::norm_backward_workspace;
