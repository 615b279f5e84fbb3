//! The stacks of the coroutines that run GPU threads. Each host thread keeps its stacks from launch to
//! launch.
//!
//! The host threads keep their stacks because the creation of a stack takes longer than a small block runs.
//! To create a stack, the executor makes two system calls and causes page faults. Linux allows 65,530 memory
//! mappings per process, and each stack with its guard page uses two. Therefore the constant [`STACKS`]
//! limits the number of stacks that idle host threads keep. [`STACKS`] also limits the number of stacks in
//! use: a host thread needs a [`Permit`] before it runs blocks. With blocks of 1024 threads, at most twelve
//! blocks run at once.
use core::cell::RefCell;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use corosensei::stack::{self, DefaultStack, StackPointer};

/// Size of a stack in bytes. The stack has space for the frames of a kernel in a debug build and for the
/// panic hook of the process. The hook runs on the stack that the panicking coroutine uses, and may capture a
/// backtrace. Stack pages that are never touched use no memory.
const STACK_BYTES: usize = 256 * 1024;

/// Maximum number of stacks that all idle host threads together keep. It is also the maximum number of stacks
/// that all running blocks together use.
const STACKS: usize = 12 * 1024;

/// Number of stacks that idle host threads keep.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Total number of stacks that all existing permits allow.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// A permit for a host thread to use this number of stacks.
pub(super) struct Permit(usize);

impl Permit {
    /// Returns a permit for `stacks` stacks, or `None` if all permits together would then exceed [`STACKS`].
    pub fn new(stacks: u32) -> Option<Self> {
        let permit = Self(stacks as usize);
        (IN_USE.fetch_add(permit.0, Relaxed) + permit.0 <= STACKS).then_some(permit)
    }

    /// Releases all permits. The child process calls this function after a fork, because the threads that had
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

/// A coroutine stack that starts some cache lines below the highest address of its memory. This distance, the
/// offset, differs between the 32 threads of a warp.
///
/// Without the offset, the stack frames of all waiting threads would start at the same position within a
/// page. The frames would then compete for the same few sets of the host CPU's cache.
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

// SAFETY: the trait requires a stack of a minimum size with a guard page and an aligned start. This stack is
// a part of a `DefaultStack`, which has a guard page below its memory. The stack starts less than 4 KiB below
// the top of this memory of 256 KiB, so enough space remains. The distance to the top is a multiple of 128,
// so the start is aligned.
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

/// Keeps `stacks` for the next launch on this host thread. While the host thread exits, its pool of stacks
/// may no longer exist. The function then frees `stacks`.
pub(super) fn keep(stacks: Vec<Stack>) {
    let _ = POOL.try_with(|pool| pool.borrow_mut().put(stacks));
}
