//! Distributes the blocks of a grid over the host's cores.
//!
//! Workers (host threads) take block numbers in ascending order from one counter. After a fault in a block,
//! the workers start no block with a higher number. Blocks with lower numbers have already started, and the
//! workers finish them. The launch therefore always reports the fault of the lowest block number.
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::collections::HashMap;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use super::block::{Block, inside_kernel};
use super::cluster::Cluster;
use super::crew::Crew;
use super::order::Draw;
use super::stack::Permit;
use super::{Fault, FaultKind, Launch};
use crate::launch::Run;

/// The data of one launch, which all its workers (host threads) share.
struct Work<'a> {
    kernel: &'static str,
    body: Run,
    shape: &'a Launch,
    args: &'a [*const c_void],
    draw: Draw,
    /// Blocks per cluster.
    cluster: u32,
    /// Number of clusters.
    clusters: u64,
    next: AtomicU64,
    first_fault: AtomicU64,
    fault: Mutex<Option<(u64, Fault)>>,
}

// SAFETY: the caller of `launch` allows several host threads to read the kernel arguments through the
// pointers in `args`. All other fields are `Sync`.
unsafe impl Sync for Work<'_> {}

/// The cluster size of each kernel that declares one, by the address of its function.
static CLUSTERS: Mutex<Option<HashMap<usize, u32>>> = Mutex::new(None);

/// # Safety
/// The requirements of [`launch`](super::launch) apply. The caller has checked the launch shape.
pub(super) unsafe fn run(
    kernel: &'static str,
    body: Run,
    shape: &Launch,
    args: &[*const c_void],
    draw: Draw,
) -> Result<(), Fault> {
    let known = || CLUSTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = known().as_ref().and_then(|known| known.get(&(body as usize)).copied()).unwrap_or(1);
    // SAFETY: the caller passes valid arguments.
    let outcome = unsafe { run_clusters(kernel, body, shape, args, draw, cluster) };
    // A kernel declares its cluster size in its first line. If the declared size differs from the size of
    // this launch, no thread has run past this line, so the launch can start again.
    let Err(Fault { kind: FaultKind::ClusterSize { declared, blocks }, .. }) = &outcome else {
        return outcome;
    };
    if u64::from(shape.grid[0]) % u64::from(*declared) != 0 || *blocks == *declared {
        return outcome;
    }
    known().get_or_insert_default().insert(body as usize, *declared);
    // SAFETY: the caller passes valid arguments.
    unsafe { run_clusters(kernel, body, shape, args, draw, *declared) }
}

/// Runs the kernel in clusters of `cluster` blocks.
///
/// # Safety
/// The requirements of [`run`] apply.
unsafe fn run_clusters(
    kernel: &'static str,
    body: Run,
    shape: &Launch,
    args: &[*const c_void],
    draw: Draw,
    cluster: u32,
) -> Result<(), Fault> {
    let cluster = if shape.grid[0].is_multiple_of(cluster) { cluster } else { 1 };
    let clusters = shape.grid.iter().map(|&n| u64::from(n)).product::<u64>() / u64::from(cluster);
    let (next, first_fault) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let fault = Mutex::new(None);
    let work = Work { kernel, body, shape, args, draw, cluster, clusters, next, first_fault, fault };
    let workers = rayon_workers().min(usize::try_from(clusters).unwrap_or(usize::MAX));
    if inside_kernel() {
        // A kernel that runs on the executor has started this launch. The launch runs on a new host thread,
        // because the stack of the outer kernel's coroutine is too small. The launch uses no other host
        // threads, because all worker threads of rayon may be waiting for it.
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
        while !self.help() && self.next.load(Relaxed) < self.clusters {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Runs blocks if enough coroutine stacks for one block are available. Otherwise runs nothing and returns
    /// false.
    fn help(&self) -> bool {
        let permit = Permit::new(self.shape.threads() as u32 * self.cluster);
        if permit.is_some() {
            self.run();
        }
        permit.is_some()
    }

    /// Runs blocks until no block is left or a block with a lower number has faulted.
    fn run(&self) {
        let cluster = Cluster::new(self.cluster);
        let block = |rank| {
            // SAFETY: `Block::new` requires kernel arguments that stay valid while the `Block` exists. The
            // caller of the function `grid::run` guarantees this for the time in which `self` exists.
            unsafe { Block::new(self.kernel, self.body, self.shape, self.args, &cluster, rank) }
        };
        let blocks: Vec<_> = (0..self.cluster).map(block).collect();
        let mut crew = Crew::new(self.cluster, blocks[0].threads(), self.draw);
        let [grid_x, grid_y, _] = self.shape.grid.map(u64::from);
        loop {
            let at = self.next.fetch_add(1, Relaxed);
            if at >= self.clusters || at > self.first_fault.load(Relaxed) {
                return;
            }
            for (block, number) in blocks.iter().zip(at * u64::from(self.cluster)..) {
                block.reset(
                    [number % grid_x, number / grid_x % grid_y, number / grid_x / grid_y].map(|i| i as u32),
                );
            }
            cluster.enter(&blocks, at);
            if let Err(fault) = crew.run(&blocks, at) {
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
