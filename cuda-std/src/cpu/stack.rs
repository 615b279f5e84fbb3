//! The stacks of coroutines, kept by each host thread from launch to launch.
//!
//! A stack costs two system calls and its page faults, more than a small block. Every stack has a guard page and so
//! takes two of the 65,530 mappings that Linux gives a process, so [`STACKS`] bounds both what is kept and, through
//! [`Permit`], what is in use: on a machine of many cores blocks of 1024 threads then run on twelve of them.
use core::cell::RefCell;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use corosensei::stack::{self, DefaultStack, StackPointer};

/// Room for a kernel's frames in a debug build and for the process's panic hook, which runs on the stack of the thread that
/// panicked and may capture a backtrace there. Untouched pages cost nothing.
const STACK_BYTES: usize = 256 * 1024;

/// Most stacks that idle host threads keep between them, and that running blocks have between them.
const STACKS: usize = 12 * 1024;

/// How many stacks idle host threads keep.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// How many stacks running blocks may take.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// Leave to use some stacks.
pub(super) struct Permit(usize);

impl Permit {
    /// Leave to use `stacks`, unless others use too many at the moment.
    pub fn new(stacks: u32) -> Option<Self> {
        let permit = Self(stacks as usize);
        (IN_USE.fetch_add(permit.0, Relaxed) + permit.0 <= STACKS).then_some(permit)
    }

    /// After a fork: those who held permits are the parent's threads.
    pub fn revoke_all() {
        IN_USE.store(0, Relaxed);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.0, Relaxed);
    }
}

/// A stack that starts some cache lines below its highest address.
///
/// The frames of waiting threads would else lie at the same offset of each page, in the same few sets of the cache.
pub(super) struct Stack {
    memory: DefaultStack,
    base: StackPointer,
}

impl Stack {
    /// The stack for thread `at` of a block.
    pub fn new(at: usize) -> std::io::Result<Self> {
        let memory = DefaultStack::new(STACK_BYTES)?;
        let colour = (at % 32) * 128;
        let base = StackPointer::new(stack::Stack::base(&memory).get() - colour);
        Ok(Self { memory, base: base.expect("a stack is no null pointer") })
    }
}

// SAFETY: a part of a stack that has a guard page below it; the colour leaves far more than the least size, and a
// multiple of 128 keeps the alignment.
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

/// All stacks that this host thread keeps.
pub(super) fn take() -> Vec<Stack> {
    POOL.with_borrow_mut(Kept::take)
}

/// Keeps `stacks` for the next launch; a host thread that is ending has no pool any more and frees them.
pub(super) fn keep(stacks: Vec<Stack>) {
    let _ = POOL.try_with(|pool| pool.borrow_mut().put(stacks));
}
