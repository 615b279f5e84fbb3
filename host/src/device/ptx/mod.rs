//! The embedded PTX: its architectures, the text of each op, and the instructions that are inserted for
//! programmatic dependent launch.
pub(crate) mod arch;
mod embedded;
mod info;
mod overlap;

pub(crate) use embedded::{Ptx, archs, available, choose, native};
pub use info::{KernelInfo, kernel_info};
pub(crate) use overlap::Overlap;
