//! What is launched, as data: grid and stream, the launch configuration of a row op, and overrides of it.
mod launch_override;
mod rung;
mod shape;
mod stream;

pub use launch_override::Choice;
pub(crate) use launch_override::Trial;
pub use rung::{Rung, rung};
pub(crate) use rung::{cluster, cluster_of};
pub use shape::Launch;
pub(crate) use shape::{GRANTED_BYTES, MOST_BESIDE, args};
pub use stream::Stream;
