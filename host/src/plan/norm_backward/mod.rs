//! Backward passes of the norms. The submodules check the arguments, divide the rows among blocks and launch
//! the kernels.
mod columns;
mod launch;
mod plan;

pub use columns::ParameterGradients;
pub(crate) use launch::{Given, NormOp};
pub(crate) use plan::multiprocessors;
pub use plan::norm_backward_workspace;
