//! Hopper's asynchronous operations on the CPU executor: mbarriers, named barriers, cluster barriers, bulk
//! and TMA copies, `wgmma` and `setmaxnreg`.
//!
//! One host thread runs all blocks of a cluster. These blocks share one [`Cluster`]. An asynchronous copy
//! moves its bytes as late as possible. The copy happens when no thread of the cluster can continue, or when
//! a thread waits for the copy's bulk group. If this thread waits only until the group has read its bytes,
//! the executor delays the writes to global memory even longer. If several copies are pending, their order is
//! pseudo-random. Until a copy to shared memory moves its bytes, the destination contains 0xFF bytes.
//!
//! The first operation of this module makes the cluster *active*. In an active cluster, the executor finds
//! races between accesses to shared memory with vector clocks and with a history of each word. It finds a
//! race no matter in which order the threads and copies run. Before the cluster becomes active, the simpler
//! detection of the module [`race`](super::race) is enough.
use core::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::block::State;
use super::bulk::BulkGroups;
use super::clock::{Acquirer, BEFORE_WARP_BARRIER, Clock, Gate};
use super::history::{By, Conflict, Histories, SharedAccess, UNIT};
use super::mbarrier::Mbarrier;
use super::named::{ClusterBarrier, NamedBarrier};
use super::registers::RegisterPool;
use super::tma::StartedCopy;
use super::wgmma::Queue;
use super::{Block, FaultKind, Origin, operate};

/// The shared-memory address of the first byte of dynamic shared memory. A GPU guarantees only that this
/// address is a multiple of 16. The executor uses an address that is not a multiple of 32, so that a kernel
/// fails if it does not align its tiles.
pub(crate) const FIRST_ADDRESS: u32 = 1024 + 16;

/// Distance from the shared memory of one block to that of the next block, in the address space of a cluster.
/// Addresses below this number refer to the block that uses them.
pub(super) const WINDOW: u32 = 1 << 24;

/// Returns the address in the cluster of `address` in block `rank`.
pub(crate) fn map_address(address: u32, rank: u32) -> u32 {
    operate(|block| {
        let blocks = block.cluster.blocks.get();
        if rank >= blocks {
            block.raise(FaultKind::ClusterRank { rank, blocks });
        }
    });
    (rank + 1) * WINDOW + address % WINDOW
}

/// A place in the shared memory of a cluster: the rank of the block, and the offset in its dynamic shared
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub rank: u32,
    pub offset: u32,
}

/// The state that all blocks of a cluster share.
#[derive(Default)]
pub(crate) struct Cluster {
    pub(super) blocks: Cell<u32>,
    /// The blocks of the running cluster, by rank.
    pub(super) running: RefCell<Vec<*const Block>>,
    pub(super) active: Cell<bool>,
    pub(super) clocks: RefCell<Vec<Clock>>,
    pub(super) acquirer: RefCell<Acquirer>,
    pub(super) agents: Cell<u32>,
    pub(super) histories: RefCell<Histories>,
    /// For each block, by rank: the number of the history of each unit. A unit is 2 bytes of shared memory,
    /// and its history is the last write and the later reads.
    pub(super) units: RefCell<Vec<Vec<u32>>>,
    pub(super) mbarriers: RefCell<HashMap<Place, Mbarrier>>,
    pub(super) named: RefCell<HashMap<(u32, u32), NamedBarrier>>,
    pub(super) barrier: RefCell<ClusterBarrier>,
    /// Whether a thread of the running cluster has arrived at `barrier`.
    pub(super) barrier_used: Cell<bool>,
    pub(super) pending: RefCell<Vec<StartedCopy>>,
    pub(super) draws: Cell<u64>,
    /// Number of events that may let a polling thread continue: arrivals at mbarriers, copies that start or
    /// end, and threads that return.
    pub(super) progress: Cell<u64>,
    pub(super) bulk: RefCell<HashMap<u32, BulkGroups>>,
    pub(super) queues: RefCell<HashMap<u32, Queue>>,
    pub(super) pools: RefCell<HashMap<u32, RegisterPool>>,
    pub(super) exited: RefCell<Vec<bool>>,
    /// For each block, the last access to its shared memory by each agent outside of the block. Such an agent
    /// is a thread of another block, or an mbarrier that counts the bytes of copies.
    pub(super) remote: RefCell<Vec<HashMap<u32, u32>>>,
}

impl Cluster {
    pub fn new(blocks: u32) -> Rc<Self> {
        Rc::new(Self { blocks: Cell::new(blocks), ..Self::default() })
    }

    /// Resets the state that the previous cluster left. `running` are the blocks of the next cluster, and
    /// `number` is its number in the grid.
    pub fn enter(&self, running: &[Block], number: u64) {
        if self.active.replace(false) {
            self.clocks.take();
            self.acquirer.take();
            self.histories.take();
            self.units.take();
            self.mbarriers.take();
            self.named.take();
            self.pending.take();
            self.bulk.take();
            self.queues.take();
            self.pools.take();
            self.remote.take();
        }
        if self.barrier_used.replace(false) {
            self.barrier.take();
        }
        self.draws.set(number);
        let mut blocks = self.running.borrow_mut();
        blocks.clear();
        blocks.extend(running.iter().map(std::ptr::from_ref));
        let mut exited = self.exited.borrow_mut();
        exited.clear();
        exited.resize(running.len(), false);
    }

    pub fn is_active(&self) -> bool {
        self.active.get()
    }

    pub(super) fn block(&self, rank: u32) -> &Block {
        // SAFETY: the code dereferences a pointer that `enter` stored. The pointer points to a block of the
        // running cluster, and the blocks exist while their cluster runs.
        unsafe { &*self.running.borrow()[rank as usize] }
    }

    pub(super) fn note_progress(&self) {
        self.progress.set(self.progress.get() + 1);
    }

    pub(super) fn new_agent(&self) -> u32 {
        self.agents.replace(self.agents.get() + 1)
    }
}

/// Methods that number the agents, which are the sources of accesses to shared memory. Threads have the first
/// agent numbers, ordered by block and thread. Other agents, such as mbarriers, have higher numbers.
impl Block {
    pub(super) fn agent(&self, thread: usize) -> u32 {
        self.rank.get() * self.threads() + thread as u32
    }

    pub(super) fn own_agent(&self) -> u32 {
        self.agent(self.running.get())
    }

    /// Makes the cluster active: from now on, the executor finds races with vector clocks and histories. Each
    /// Hopper operation that records accesses to shared memory or orders them calls this function first.
    /// `stmatrix` and relaxed arrivals do neither.
    pub(super) fn activate(&self) -> &Cluster {
        let cluster = &*self.cluster;
        if !cluster.active.replace(true) {
            let (blocks, threads) = (cluster.blocks.get(), self.threads());
            cluster.agents.set(blocks * threads);
            *cluster.clocks.borrow_mut() = Clock::of_threads(blocks, threads);
            let units = (self.shape.shared_bytes as usize).div_ceil(UNIT);
            *cluster.units.borrow_mut() = vec![vec![0; units]; blocks as usize];
            *cluster.remote.borrow_mut() = vec![HashMap::new(); blocks as usize];
            (0..blocks).for_each(|rank| cluster.block(rank).record_earlier());
        }
        cluster
    }

    /// Adds earlier accesses to the histories: the accesses that happened before the cluster became active.
    /// If a block barrier followed an access, the clocks of all threads of the block contain it. If only a
    /// warp barrier followed, the clocks of the warp's lanes contain it. Clocks of other blocks contain no
    /// such access, because a cluster barrier between the blocks would already have made the cluster active.
    fn record_earlier(&self) {
        let cluster = &*self.cluster;
        let mut units = cluster.units.borrow_mut();
        let (units, mut histories) = (&mut units[self.rank.get() as usize], cluster.histories.borrow_mut());
        // Usually, the vector clocks of all warps can share one object. A warp gets its own object only if it
        // has accesses that a warp barrier, but no block barrier, followed.
        let mut of_warp = vec![false; self.slots.len().div_ceil(32)];
        self.races.each_access(|earlier| {
            of_warp[usize::from(earlier.thread) / 32] |= earlier.event == BEFORE_WARP_BARRIER;
            let agent = self.agent(usize::from(earlier.thread));
            let access = SharedAccess { agent, time: earlier.event, by: By::Thread };
            units[earlier.unit] = histories.extended(units[earlier.unit], access, earlier.writes);
        });
        let mut clocks = cluster.clocks.borrow_mut();
        let own = &mut clocks[self.agent(0) as usize..][..self.slots.len()];
        let warps = own.chunks_mut(32).zip(of_warp).filter(|(_, of_warp)| *of_warp);
        warps.for_each(|(lanes, _)| Clock::know_each_other(lanes));
    }

    /// Calls `f` with the clock of the running thread.
    pub(super) fn clock<R>(&self, f: impl FnOnce(&mut Clock) -> R) -> R {
        f(&mut self.activate().clocks.borrow_mut()[self.own_agent() as usize])
    }

    /// Records that event number `time` of an agent happens before the next event of the running thread. The
    /// agent with number `agent` is a thread or another source of accesses to shared memory, such as an
    /// mbarrier.
    pub(super) fn learn(&self, agent: u32, time: u32) {
        self.clock(|clock| self.cluster.acquirer.borrow_mut().learn(clock, agent, time));
    }

    /// Returns the block and the offset to which `address` belongs. Raises a fault if the `bytes` bytes from
    /// `address` on are not in the dynamic shared memory of a running block.
    pub(super) fn place(&self, address: u32, bytes: u32, align: u32) -> Place {
        let (window, at) = (address / WINDOW, address % WINDOW);
        let rank = if window == 0 { self.rank.get() } else { window - 1 };
        let size = self.shape.shared_bytes;
        let offset = at.wrapping_sub(FIRST_ADDRESS);
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            self.raise(FaultKind::SharedOutOfBounds { offset: offset as usize, bytes: bytes as usize, size });
        }
        if !at.is_multiple_of(align) {
            self.raise(FaultKind::Misaligned { address: at as usize, bytes: align as usize });
        }
        let place = Place { rank, offset };
        if rank >= self.cluster.blocks.get() {
            self.raise(FaultKind::ClusterRank { rank, blocks: self.cluster.blocks.get() });
        }
        if self.cluster.exited.borrow()[rank as usize] {
            self.raise(FaultKind::ExitedBlock { rank, offset: offset as usize, bytes: bytes as usize });
        }
        place
    }

    /// Returns a pointer to a place that [`Block::place`] has checked.
    pub(super) fn pointer(&self, place: Place) -> *mut u8 {
        self.cluster.block(place.rank).shared_base().wrapping_add(place.offset as usize)
    }

    /// Returns a load or store of the running thread.
    pub(super) fn thread_access(&self) -> SharedAccess {
        self.clock(|clock| SharedAccess { agent: clock.agent, time: clock.now, by: By::Thread })
    }

    /// Records a load or store by the running thread, if the cluster is active.
    #[cold]
    #[inline(never)]
    pub(super) fn note_active(&self, offset: usize, bytes: usize, writes: bool) {
        let access = self.thread_access();
        let place = Place { rank: self.rank.get(), offset: offset as u32 };
        self.record(place, bytes as u32, access, writes);
    }

    /// Records that the running thread initializes the mbarrier of `bytes` bytes at `place`.
    pub(super) fn note_initialization(&self, place: Place, bytes: u32) {
        let access = SharedAccess { by: By::Initialization, ..self.thread_access() };
        self.record(place, bytes, access, true);
    }

    /// Records `access`, which the running thread makes or starts. Raises a fault if nothing orders this
    /// access and an earlier access that conflicts with it.
    pub(super) fn record(&self, place: Place, bytes: u32, access: SharedAccess, writes: bool) {
        self.record_all(place.rank, bytes, std::iter::once(place.offset), access, writes);
        if place.rank != self.rank.get() {
            self.cluster.remote.borrow_mut()[place.rank as usize].insert(access.agent, access.time);
        }
    }

    /// Records `access` for several ranges of `bytes` bytes, at the given offsets in the shared memory of
    /// block `rank`.
    pub(super) fn record_all(
        &self,
        rank: u32,
        bytes: u32,
        offsets: impl Iterator<Item = u32>,
        access: SharedAccess,
        writes: bool,
    ) {
        let outcome = {
            let cluster = self.activate();
            let mut units = cluster.units.borrow_mut();
            let mut histories = cluster.histories.borrow_mut();
            histories.collect(&mut units);
            let clock = &cluster.clocks.borrow()[self.own_agent() as usize];
            let ranges =
                offsets.map(|offset| offset as usize / UNIT..((offset + bytes) as usize).div_ceil(UNIT));
            histories.record(&mut units[rank as usize], ranges, access, writes, clock)
        };
        if let Err((conflict, range)) = outcome
            && !self.unwinds()
        {
            let place = Place { rank, offset: (range.start * UNIT) as u32 };
            self.raise(self.fault_of_conflict(place, bytes, access, writes, conflict));
        }
    }

    pub(super) fn fault_of_conflict(
        &self,
        Place { rank, offset }: Place,
        bytes: u32,
        access: SharedAccess,
        writes: bool,
        conflict: Conflict,
    ) -> FaultKind {
        let (offset, bytes) = (offset as usize, bytes as usize);
        match conflict {
            Conflict::Unordered { earlier, wrote } => {
                if let (By::Copy(_), true) = (earlier.by, wrote)
                    && let Some(fault) = self.unfinished(earlier, offset, bytes, writes)
                {
                    return fault;
                }
                let of_block = rank == self.rank.get() && earlier.agent / self.threads() == rank;
                if access.by.is_generic() && earlier.by.is_generic() && of_block {
                    let other = self.thread_of(earlier.agent);
                    return FaultKind::Race { offset, bytes, writes, other, wrote };
                }
                let (now, before) = (self.origin(access), self.origin(earlier));
                FaultKind::AsyncRace { offset, bytes, now, writes, before, wrote }
            }
            Conflict::Unfenced { earlier } => {
                let (now, writer) = (self.origin(access), self.thread_of(earlier.agent));
                FaultKind::ProxyFence { offset, bytes, now, writes, writer }
            }
            Conflict::Mbarrier { earlier } => {
                let (now, by) = (self.origin(access), self.thread_of(earlier.agent));
                FaultKind::MbarrierOverwritten { offset, now, by }
            }
            Conflict::Swizzled { written } => {
                let By::Wgmma(read) = access.by else { unreachable!("only wgmma reads tiles") };
                FaultKind::Swizzle { offset, written: written.row(), read: read.row() }
            }
        }
    }

    /// Returns the index, in its block, of the thread of this cluster whose agent number is `agent`. Agents
    /// are all sources of accesses to shared memory, such as threads and mbarriers, and have consecutive
    /// numbers.
    pub(super) fn thread_of(&self, agent: u32) -> [u32; 3] {
        self.slots[(agent % self.threads()) as usize].index
    }

    fn origin(&self, access: SharedAccess) -> Origin {
        match access.by {
            By::Thread | By::Initialization => Origin::Thread(self.thread_of(access.agent)),
            By::Wgmma(_) => Origin::Wgmma,
            By::Copy(_) => Origin::Copy,
        }
    }

    /// Records that the threads `threads` have arrived at a block barrier or a warp barrier. The barrier
    /// orders the accesses of these threads: the earlier accesses of each thread happen before the later
    /// accesses of all others.
    #[cold]
    #[inline(never)]
    pub(super) fn synchronize_active(&self, threads: impl Iterator<Item = usize> + Clone) {
        let cluster = &*self.cluster;
        let (mut clocks, mut gate) = (cluster.clocks.borrow_mut(), Gate::default());
        for thread in threads.clone() {
            gate.add(&mut clocks[self.agent(thread) as usize]);
        }
        let (released, mut acquirer) = (gate.open(), cluster.acquirer.borrow_mut());
        for thread in threads {
            acquirer.acquire(&mut clocks[self.agent(thread) as usize], &released);
        }
    }

    /// A thread of the block returns from the kernel.
    pub(super) fn returns(&self) -> Result<(), FaultKind> {
        self.thread_returns_from_bulk()?;
        self.thread_returns_from_registers()?;
        self.thread_returns_from_wgmma()
    }

    /// Called when all threads of the block have returned. Returns a fault if another block may still access
    /// the shared memory of this block, or if a copy to it has not completed.
    pub(super) fn exits(&self) -> Result<(), (usize, FaultKind)> {
        let cluster = &*self.cluster;
        let rank = self.rank.get();
        cluster.exited.borrow_mut()[rank as usize] = true;
        if !cluster.is_active() {
            return Ok(());
        }
        let clocks = cluster.clocks.borrow();
        let own = &clocks[self.agent(0) as usize..][..self.slots.len()];
        let remote = cluster.remote.borrow();
        let knows = |agent, time| own.iter().any(|clock| clock.knows(agent, time));
        let unknown = remote[rank as usize].iter().filter(|&(&agent, &time)| !knows(agent, time));
        // Choose the agent (source of accesses) with the lowest number, so that the reported fault does not
        // depend on the iteration order of the map.
        match unknown.min_by_key(|&(&agent, _)| agent) {
            Some((&agent, &time)) => {
                let unobserved = self.unobserved_copy(agent, time);
                Err((0, unobserved.unwrap_or(FaultKind::EarlyExit { rank })))
            }
            None if cluster.expects_arrival(rank, knows) => Err((0, FaultKind::EarlyExit { rank })),
            None => cluster.copies_at_exit(rank),
        }
    }
}

/// Waits in the state `state` until another thread marks the running thread as ready.
pub(super) fn pause(block: &Block, state: State) {
    if block.may_wait(state) {
        block.suspend();
    }
}

/// Executes a proxy fence (`fence.proxy.async`).
pub(crate) fn proxy_fence() {
    operate(|block| {
        block.clock(Clock::fence);
        block.publish_mbarriers();
    });
}
