//! The stacks of coroutines. Each host thread keeps its stacks from launch to launch.
//!
//! The creation of a stack takes two system calls and page faults. This is more time than a small block
//! takes. Every stack has a guard page, so a stack uses two of the 65,530 memory mappings that Linux allows
//! per process. Therefore the constant [`STACKS`] limits the number of stacks that idle threads keep. The
//! same constant limits the number of stacks in use: a block needs a [`Permit`] for its stacks before it
//! runs. With blocks of 1024 threads, at most twelve blocks run at once.
use core::cell::RefCell;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use corosensei::stack::{self, DefaultStack, StackPointer};

/// Size of a stack in bytes. The stack has space for the frames of a kernel in a debug build and for the
/// panic hook of the process. The hook runs on the stack of the thread that panicked and may capture a
/// backtrace there. Pages that are never touched use no memory.
const STACK_BYTES: usize = 256 * 1024;

/// Maximum number of stacks that all idle host threads together keep. The same limit applies to the stacks
/// that all running blocks together use.
const STACKS: usize = 12 * 1024;

/// Number of stacks that idle host threads keep.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Number of stacks for which permits exist, so that running blocks may use them.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// A permit to use this number of stacks.
pub(super) struct Permit(usize);

impl Permit {
    /// Returns a permit for `stacks` stacks, or `None` if the limit would be exceeded.
    pub fn new(stacks: u32) -> Option<Self> {
        let permit = Self(stacks as usize);
        (IN_USE.fetch_add(permit.0, Relaxed) + permit.0 <= STACKS).then_some(permit)
    }

    /// Releases all permits. The child process of a fork calls this function, because the threads that had
    /// the permits exist only in the parent process.
    pub fn revoke_all() {
        IN_USE.store(0, Relaxed);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.0, Relaxed);
    }
}

/// A coroutine stack that starts a few cache lines (the offset) below the highest address of its memory. The
/// 32 threads of a warp have different offsets.
///
/// Without the offset, the stack frames of all waiting threads would have the same position within a page.
/// They would then compete for the same few cache sets.
pub(super) struct Stack {
    memory: DefaultStack,
    base: StackPointer,
}

impl Stack {
    /// Allocates the stack for thread `at` of a block.
    pub fn new(at: usize) -> std::io::Result<Self> {
        let memory = DefaultStack::new(STACK_BYTES)?;
        let colour = (at % 32) * 128;
        let base = StackPointer::new(stack::Stack::base(&memory).get() - colour);
        Ok(Self { memory, base: base.expect("a stack is no null pointer") })
    }
}

// SAFETY: the stack is a part of a `DefaultStack`, which has a guard page below its memory. The offset of the
// start is less than 4 KiB of 256 KiB, so more than the required minimum size remains. The offset is a
// multiple of 128, so the start stays aligned.
unsafe impl stack::Stack for Stack {
    #[inline]
    fn base(&self) -> StackPointer {
        self.base
    }

    #[inline]
    fn limit(&self) -> StackPointer {
        self.memory.limit()
    }

    #[cfg(windows)]
    fn teb_fields(&self) -> stack::StackTebFields {
        self.memory.teb_fields()
    }

    #[cfg(windows)]
    fn update_teb_fields(&mut self, stack_limit: usize, guaranteed_stack_bytes: usize) {
        self.memory.update_teb_fields(stack_limit, guaranteed_stack_bytes);
    }
}

/// The stacks that one host thread keeps.
struct Kept(Vec<Stack>);

impl Kept {
    fn take(&mut self) -> Vec<Stack> {
        KEPT.fetch_sub(self.0.len(), Relaxed);
        core::mem::take(&mut self.0)
    }

    fn put(&mut self, mut stacks: Vec<Stack>) {
        stacks.append(&mut self.take());
        stacks.truncate(STACKS.saturating_sub(KEPT.load(Relaxed)));
        KEPT.fetch_add(stacks.len(), Relaxed);
        self.0 = stacks;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.take();
    }
}

thread_local! {
    static POOL: RefCell<Kept> = const { RefCell::new(Kept(Vec::new())) };
}

/// Takes all stacks that this host thread keeps for later launches.
pub(super) fn take() -> Vec<Stack> {
    POOL.with_borrow_mut(Kept::take)
}

/// Keeps `stacks` for the next launch on this host thread. If the host thread is about to end, its pool of
/// stacks no longer exists. The function then frees `stacks`.
pub(super) fn keep(stacks: Vec<Stack>) {
    let _ = POOL.try_with(|pool| pool.borrow_mut().put(stacks));
}
