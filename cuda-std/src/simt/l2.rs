//! L2 cache policy for rows that a kernel reads once.
use super::thread;
use crate::arch;
use crate::base::cache::Load;
pub use crate::base::cache::{LINE, Policy};

/// The L2 cache policy of a kernel that reads each row once. The host passes the policy as a kernel argument.
///
/// On an H200, such kernels take 1 to 4 % less time if they load rows with `evict_last` instead of the
/// default policy (`docs/internals/launch-configuration.md`). However, `evict_last` lines stay in L2 after
/// the kernel and reduce the L2 capacity of later kernels. Therefore the last blocks of the grid reset the
/// lines that they loaded to `evict_normal` (instruction `applypriority`). Lines that earlier blocks loaded
/// are no longer in L2, because the lines of the last blocks have replaced them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2Policy {
    policy: Policy,
    /// Block index (in x) from which on blocks reset the cache lines that they loaded to `evict_normal`.
    demote_from: u32,
}

impl L2Policy {
    /// The default policy of the GPU, without demotion.
    pub const PLAIN: Self = Self { policy: Policy::NORMAL, demote_from: u32::MAX };

    /// Returns a policy that loads rows with `evict_last`. Each block whose index in x is at least `first`
    /// also resets the cache lines that it loaded to `evict_normal`. Each row must start and end at a
    /// boundary of a cache line.
    pub const fn kept_until(first: u32) -> Self {
        Self { policy: Policy::LAST, demote_from: first }
    }

    /// Returns the cache hint for loads of the rows.
    #[inline(always)]
    pub fn load(self) -> Load {
        Load::By(self.policy)
    }

    /// Returns whether the calling thread's block must change the L2 policy of the cache lines that it loaded
    /// from `evict_last` back to `evict_normal`.
    #[inline(always)]
    pub fn demotes(self) -> bool {
        thread::block_index()[0] >= self.demote_from
    }
}

/// Resets the L2 eviction priority of the cache line at `line` from `evict_last` to `evict_normal`.
///
/// # Safety
/// `line` is the start of a cache line of readable global memory.
#[inline(always)]
pub unsafe fn demote(line: *const u8) {
    // SAFETY: the caller passes the start of a readable cache line.
    unsafe { arch::l2_demote(line) }
}
