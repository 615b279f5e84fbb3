//! Distributes the blocks of a grid over the host's cores.
//!
//! Workers (host threads) take block numbers in ascending order from one counter. After a fault in a block,
//! the workers start no block with a higher number. Blocks with lower numbers have already started, and the
//! workers finish them. The launch therefore always reports the fault of the lowest block number.
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use super::block::{Block, inside_kernel};
use super::crew::Crew;
use super::order::Draw;
use super::stack::Permit;
use super::{Fault, Launch};
use crate::launch::Run;

/// The data of one launch, which all its workers (host threads) share.
struct Work<'a> {
    kernel: &'static str,
    body: Run,
    shape: &'a Launch,
    args: &'a [*const c_void],
    draw: Draw,
    blocks: u64,
    next: AtomicU64,
    first_fault: AtomicU64,
    fault: Mutex<Option<(u64, Fault)>>,
}

// SAFETY: the caller of `launch` allows several host threads to read the kernel arguments through the
// pointers in `args`. All other fields are `Sync`.
unsafe impl Sync for Work<'_> {}

/// # Safety
/// The requirements of [`launch`](super::launch) apply. The caller has checked the launch shape.
pub(super) unsafe fn run(
    kernel: &'static str,
    body: Run,
    shape: &Launch,
    args: &[*const c_void],
    draw: Draw,
) -> Result<(), Fault> {
    let blocks = shape.grid.iter().map(|&n| u64::from(n)).product();
    let (next, first_fault) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let work = Work { kernel, body, shape, args, draw, blocks, next, first_fault, fault: Mutex::new(None) };
    let workers = rayon_workers().min(usize::try_from(blocks).unwrap_or(usize::MAX));
    if inside_kernel() {
        // A kernel that runs on the executor has started this launch. It runs on a new host thread, because
        // the stack of the outer kernel's coroutine is too small. It uses no other host threads, because all
        // worker threads of rayon may be waiting for this launch.
        std::thread::scope(|scope| _ = scope.spawn(|| work.run()));
    } else if workers == 1 {
        work.lead();
    } else {
        rayon::scope(|scope| {
            (1..workers).for_each(|_| scope.spawn(|_| _ = work.help()));
            work.lead();
        });
    }
    match work.fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, fault)) => Err(fault),
        None => Ok(()),
    }
}

/// Returns the number of host threads that run blocks. The number is 1 in the child process of a fork,
/// because rayon's threads exist only in the parent process.
fn rayon_workers() -> usize {
    if forked() { 1 } else { rayon::current_num_threads() }
}

impl Work<'_> {
    /// Runs blocks on the calling host thread. If too few coroutine stacks are available, the function waits
    /// until other blocks release their stacks. Every launch therefore completes, even if no other worker
    /// gets stacks.
    fn lead(&self) {
        while !self.help() && self.next.load(Relaxed) < self.blocks {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Runs blocks if enough coroutine stacks for one block are available. Otherwise runs nothing and returns
    /// false.
    fn help(&self) -> bool {
        let permit = Permit::new(self.shape.threads() as u32);
        if permit.is_some() {
            self.run();
        }
        permit.is_some()
    }

    /// Runs blocks until no block is left or a block with a lower number has faulted.
    fn run(&self) {
        // SAFETY: the caller of the function `grid::run` passed kernel arguments that stay valid while `self`
        // exists.
        let block = unsafe { Block::new(self.kernel, self.body, self.shape, self.args) };
        let mut crew = Crew::new(block.threads(), self.draw);
        loop {
            let at = self.next.fetch_add(1, Relaxed);
            if at >= self.blocks || at > self.first_fault.load(Relaxed) {
                return;
            }
            if let Err(fault) = crew.run(&block, at) {
                self.first_fault.fetch_min(at, Relaxed);
                let mut lowest = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
                if lowest.as_ref().is_none_or(|(number, _)| at < *number) {
                    *lowest = Some((at, fault));
                }
            }
        }
    }
}

static FORKED: AtomicBool = AtomicBool::new(false);

/// Returns whether this process was created by a fork of a process that had already launched a kernel.
/// Rayon's worker threads exist only in the parent process. In the child process, a rayon scope would never
/// end.
fn forked() -> bool {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        extern "C" fn child() {
            FORKED.store(true, Relaxed);
            Permit::revoke_all();
        }
        // SAFETY: the handler `child` only stores to atomics, which is allowed after a fork. The registration
        // fails only if memory is exhausted. Forks are then not detected, which causes no memory error.
        #[cfg(unix)]
        unsafe {
            libc::pthread_atfork(None, None, Some(child));
        }
    });
    FORKED.load(Relaxed)
}
