//! The L2 cache: what stays there of rows that a kernel reads once.
use super::thread;
use crate::arch;
use crate::base::cache::Load;
pub use crate::base::cache::{LINE, Policy};

/// How what a kernel reads once passes through L2: a kernel argument.
///
/// Kernels that keep such lines (`evict_last`), although nobody reads them again, take 1 to 4 % less time on
/// an H200 (`docs/ladders.md`). But the lines stay until others are kept, and whoever comes behind has that
/// much less of L2: so the blocks at the end give theirs back (`applypriority`), when these have taken the
/// places of the earlier ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2Policy {
    policy: Policy,
    /// The first block, in x, that gives its lines back.
    demote_from: u32,
}

impl L2Policy {
    /// As the GPU does by itself.
    pub const PLAIN: Self = Self { policy: Policy::NORMAL, demote_from: u32::MAX };

    /// Lines are kept, and given back by all blocks from number `first` on. Rows begin and end with a line.
    pub const fn kept_until(first: u32) -> Self {
        Self { policy: Policy::LAST, demote_from: first }
    }

    /// How the rows are loaded.
    #[inline(always)]
    pub fn load(self) -> Load {
        Load::By(self.policy)
    }

    /// Does the calling block give its lines back?
    #[inline(always)]
    pub fn demotes(self) -> bool {
        thread::block_index()[0] >= self.demote_from
    }
}

/// Gives a kept line back.
///
/// # Safety
/// A line of global memory that may be read begins at `line`.
#[inline(always)]
pub unsafe fn demote(line: *const u8) {
    // SAFETY: as the caller promises.
    unsafe { arch::l2_demote(line) }
}
