//! Backward passes of the norms: checks of the arguments, division of the rows among blocks, and the
//! launches.
mod columns;
mod launch;
mod plan;

pub use columns::ParameterGradients;
pub(crate) use launch::{Given, NormOp};
pub use plan::norm_backward_workspace;
