//! Named barriers of a block (`barrier.cta` with a number), and the barrier of a cluster.
use super::block::State;
use super::clock::{Gate, Released};
use super::cluster::{Cluster, pause};
use super::{Block, FaultKind, operate};

/// Number of barriers of a block. Number 0 is the block barrier.
const BARRIERS: u32 = 16;

/// A named barrier that some threads have reached.
#[derive(Debug, Default)]
pub(super) struct NamedBarrier {
    /// Number of threads that complete the barrier.
    threads: u32,
    arrived: u32,
    gate: Gate,
    done: Released,
    waiting: Vec<usize>,
}

/// The barrier of a cluster. A thread that has returned from the kernel counts as arrived, as in PTX.
#[derive(Debug, Default)]
pub(super) struct ClusterBarrier {
    /// Number of threads that have not returned.
    live: u32,
    /// Number of these threads that have not arrived.
    missing: u32,
    /// Number of times that all threads have arrived.
    completed: u32,
    gate: Gate,
    done: Released,
}

/// Arrives at the named barrier `id`, and waits until `threads` threads have arrived at it.
pub(crate) fn named_sync(id: u32, threads: u32) {
    operate(|block| {
        if !block.arrive_at_named(id, threads, true) {
            block.own_notes().waits_for.set(Some((id, threads)));
            pause(block, State::AtNamed);
        }
        let done = block.cluster.named.borrow()[&(block.rank.get(), id)].done.clone();
        block.clock(|clock| block.cluster.acquirer.borrow_mut().acquire(clock, &done));
    });
}

/// Arrives at the named barrier `id`, which counts `threads` threads. Does not wait.
pub(crate) fn named_arrive(id: u32, threads: u32) {
    operate(|block| _ = block.arrive_at_named(id, threads, false));
}

/// Arrives at the barrier of the cluster. If `releases` is false, the arrival orders no memory accesses
/// (`.relaxed`).
pub(crate) fn cluster_arrive(releases: bool) {
    operate(|block| {
        let notes = block.own_notes();
        let arrivals = notes.cluster_arrivals.get();
        if arrivals != notes.cluster_waits.get() {
            block.raise(FaultKind::ClusterBarrierOrder { arrives: true });
        }
        notes.cluster_arrivals.set(arrivals + 1);
        if !block.cluster.barrier_used.replace(true) {
            block.cluster.count_live();
        }
        if releases {
            block.clock(|clock| block.cluster.barrier.borrow_mut().gate.add(clock));
        }
        block.cluster.arrive_at_barrier();
    });
}

/// Waits until all threads of the cluster have arrived at its barrier.
pub(crate) fn cluster_wait() {
    operate(|block| {
        let notes = block.own_notes();
        let waits = notes.cluster_waits.get() + 1;
        if notes.cluster_arrivals.get() != waits {
            block.raise(FaultKind::ClusterBarrierOrder { arrives: false });
        }
        if block.cluster.barrier.borrow().completed < waits {
            pause(block, State::AtCluster);
        }
        notes.cluster_waits.set(waits);
        if block.cluster.is_active() {
            let done = block.cluster.barrier.borrow().done.clone();
            block.clock(|clock| block.cluster.acquirer.borrow_mut().acquire(clock, &done));
        }
    });
}

impl Block {
    /// Counts the arrival of the running thread at a named barrier. Returns whether this arrival completes
    /// the barrier.
    fn arrive_at_named(&self, id: u32, threads: u32, waits: bool) -> bool {
        if id == 0
            || id >= BARRIERS
            || threads == 0
            || !threads.is_multiple_of(32)
            || threads > self.whole_warps()
        {
            self.raise(FaultKind::NamedBarrierUse { id, threads });
        }
        let cluster = self.activate();
        let mut named = cluster.named.borrow_mut();
        let barrier = named.entry((self.rank.get(), id)).or_default();
        if barrier.arrived > 0 && barrier.threads != threads {
            let expected = barrier.threads;
            drop(named);
            self.raise(FaultKind::NamedBarrierThreads { id, threads, expected });
        }
        barrier.threads = threads;
        barrier.arrived += 1;
        self.clock(|clock| barrier.gate.add(clock));
        if barrier.arrived < threads {
            if waits {
                barrier.waiting.push(self.running.get());
            }
            return false;
        }
        barrier.arrived = 0;
        barrier.done = barrier.gate.open();
        for thread in barrier.waiting.drain(..) {
            self.slots[thread].state.set(State::Ready);
        }
        true
    }

    fn whole_warps(&self) -> u32 {
        self.threads().next_multiple_of(32)
    }

    /// Returns the fault of thread `thread`, which waits at a named barrier and cannot continue.
    pub(super) fn stalled_at_named(&self, thread: usize) -> FaultKind {
        let (id, threads) = self.notes[thread].waits_for.get().expect("waits at a named barrier");
        let arrived = self.cluster.named.borrow()[&(self.rank.get(), id)].arrived;
        FaultKind::NamedBarrier { id, arrived, threads }
    }

    /// Returns the fault of a thread that waits at the barrier of the cluster and cannot continue.
    pub(super) fn stalled_at_cluster(&self) -> FaultKind {
        let threads = self.threads() * self.cluster.blocks.get();
        FaultKind::ClusterBarrier { arrived: threads - self.cluster.barrier.borrow().missing, threads }
    }

    /// Counts thread `thread` as arrived at the barrier of the cluster, because this thread has returned from
    /// the kernel.
    #[cold]
    #[inline(never)]
    pub(super) fn returns_from_cluster_barrier(&self, thread: usize) {
        let completed = {
            let mut barrier = self.cluster.barrier.borrow_mut();
            barrier.live -= 1;
            barrier.completed
        };
        if self.notes[thread].cluster_arrivals.get() == completed {
            self.cluster.arrive_at_barrier();
        }
    }
}

impl Cluster {
    /// Before the first arrival at the barrier, sets the number of missing arrivals to the number of threads
    /// that have not returned.
    fn count_live(&self) {
        let running = self.running.borrow();
        // SAFETY: the code dereferences pointers that `enter` stored. They point to the blocks of the running
        // cluster, which exist while it runs.
        let states = running.iter().flat_map(|block| unsafe { &**block }.states());
        let live = states.filter(|state| state.get() != State::Returned).count() as u32;
        let mut barrier = self.barrier.borrow_mut();
        (barrier.live, barrier.missing) = (live, live);
    }

    /// Counts one arrival at the barrier of the cluster. If no other arrival is missing, completes the
    /// barrier.
    fn arrive_at_barrier(&self) {
        let mut barrier = self.barrier.borrow_mut();
        barrier.missing -= 1;
        if barrier.missing > 0 {
            return;
        }
        barrier.missing = barrier.live;
        barrier.completed += 1;
        barrier.done = barrier.gate.open();
        for &block in &*self.running.borrow() {
            // SAFETY: see `count_live`.
            unsafe { &*block }.wake(State::AtCluster);
        }
    }
}
