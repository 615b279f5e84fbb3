//! Launch configurations of row ops such as `softmax`. A caller can override the configuration that an op
//! would choose.
mod launch_override;
mod rung;

pub use launch_override::{LaunchOverride, Overridable};
pub(crate) use launch_override::{LaunchRecorder, launch_override};
pub(crate) use rung::{RowKernels, cluster, cluster_block, cluster_of, in_registers};
pub use rung::{Rung, rung};
