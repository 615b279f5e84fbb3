//! Parameters of a launch: grid and block, stream, launch configurations of row ops such as `softmax`, and
//! overrides of these configurations.
mod launch_override;
mod rung;
mod shape;
mod stream;

pub use launch_override::LaunchOverride;
pub(crate) use launch_override::LaunchRecorder;
pub(crate) use rung::{RowKernels, cluster, cluster_block, cluster_of, in_registers};
pub use rung::{Rung, rung};
pub use shape::Launch;
pub(crate) use shape::{DEFAULT_SMEM_BYTES, MAX_GRID_YZ, args};
pub use stream::Stream;
