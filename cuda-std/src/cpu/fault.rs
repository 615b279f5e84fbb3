//! The faults of a launch on the CPU executor, and their messages. If a block barrier or a warp exchange
//! never completes, the message names a thread that waits. It also names a thread that does not arrive, and
//! the reason. For other barriers, the message contains the number of missing arrivals or the number of
//! threads that have arrived.
use core::fmt;
use core::panic::Location;

use super::fault_kind::{FaultKind, Index};

/// The fault with which a launch failed: its kind, and the kernel, block and thread in which it occurred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Index of the block in the grid.
    pub block: [u32; 3],
    /// Index of the thread in its block.
    pub thread: [u32; 3],
    /// The call in the kernel's source code that caused the fault, or at which the thread waits. `None` for a
    /// fault without such a call, for example a panic.
    pub location: Option<&'static Location<'static>>,
    /// Kind of the fault.
    pub kind: FaultKind,
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { kernel, block, thread, location, kind } = self;
        match kind {
            FaultKind::BadLaunch(_) => write!(f, "{kernel}: {kind}"),
            _ => {
                write!(f, "{kernel}: block {} thread {}", Index(*block), Index(*thread))?;
                if let Some(location) = location {
                    write!(f, " at {}:{}", location.file(), location.line())?;
                }
                write!(f, ": {kind}")
            }
        }
    }
}
