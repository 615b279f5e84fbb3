//! Mbarriers: objects of 8 bytes in shared memory that count arrivals and the bytes of asynchronous copies.
use rustc_hash::FxHashMap;

use super::block::State;
use super::clock::{Gate, Released};
use super::cluster::{Cluster, Place, pause};
use super::history::{By, SharedAccess};
use super::{Block, FaultKind, operate, with};

/// Bytes of an mbarrier.
const BYTES: u32 = 8;
/// Largest number of arrivals, and of pending bytes, that an mbarrier can count.
const MAX_COUNT: u32 = (1 << 20) - 1;

/// The state of an mbarrier. `phase` is the number of completed phases, and the current phase has the parity
/// `phase % 2`.
#[derive(Debug)]
pub(super) struct Mbarrier {
    pub agent: u32,
    arrivals: u32,
    missing: u32,
    pub phase: u32,
    bytes: i64,
    /// Two byte counts of the current phase: the bytes that its arrivals expect, and the bytes of the copies
    /// that started in it.
    expected: i64,
    started: i64,
    gate: Gate,
    done: Released,
    /// The last arrivals by threads of other blocks, if these arrivals do not order the threads' own
    /// accesses. The key is the agent number of the thread. The value is the number of the thread's next
    /// event at the arrival, and the number of the mbarrier's phase, counted from 1.
    remote: FxHashMap<u32, (u32, u32)>,
    /// Agent and time of the initialization.
    init: (u32, u32),
    /// `Some` if the initializing thread executed a fence after the initialization. The value is the number
    /// of cluster barriers at which this thread had arrived before the fence.
    published: Option<u32>,
    /// The threads that have waited at this mbarrier, by agent number. For each thread: the last phase whose
    /// end it has seen, and whether it has waited for this end more than once.
    seen: std::collections::HashMap<u32, (u32, bool)>,
}

impl Mbarrier {
    fn is_complete(&self) -> bool {
        self.missing == 0 && self.bytes == 0
    }

    /// Returns a fault if all arrivals of the current phase have occurred, but its copies have more bytes
    /// than these arrivals announced. No later arrival can announce the remaining bytes, so the phase would
    /// end before its copies complete, or never.
    fn surplus(&self, offset: usize) -> Option<FaultKind> {
        let Self { phase, expected, started, .. } = *self;
        let surplus = self.missing == 0 && started > expected;
        surplus.then_some(FaultKind::MbarrierBytes { offset, phase, expected, started })
    }
}

/// Initializes the mbarrier at `address` (`mbarrier.init`).
pub(crate) fn init(address: u32, arrivals: u32) {
    operate(|block| {
        let cluster = block.activate();
        let place = block.own_place(address, BYTES, BYTES);
        if arrivals == 0 || arrivals > MAX_COUNT {
            block.raise(FaultKind::MbarrierCount { offset: place.offset as usize, count: arrivals });
        }
        block.note_initialization(place, BYTES);
        let init = block.clock(|clock| (clock.agent, clock.now));
        let barrier = Mbarrier {
            agent: cluster.new_agent(),
            arrivals,
            missing: arrivals,
            phase: 0,
            bytes: 0,
            expected: 0,
            started: 0,
            gate: Gate::default(),
            done: Released::default(),
            remote: FxHashMap::default(),
            init,
            published: None,
            seen: Default::default(),
        };
        cluster.mbarriers.borrow_mut().insert(place, barrier);
    });
}

/// Makes the mbarriers that the running thread initialized visible to asynchronous copies and to other blocks
/// of the cluster (`fence.mbarrier_init.release.cluster`).
pub(crate) fn init_fence() {
    operate(|block| {
        block.activate();
        block.publish_mbarriers();
    });
}

/// Arrives once at the mbarrier at `address`, which may be in another block of the cluster.
pub(crate) fn arrive(address: u32) {
    operate(|block| block.arrive_at_mbarrier(address, 0, true));
}

/// Arrives once at the mbarrier at `address`. The arrival orders only asynchronous operations whose end the
/// thread knows, for example `wgmma` groups that it has waited for. The arrival does not order the thread's
/// own accesses.
pub(crate) fn arrive_after_wgmma(address: u32) {
    operate(|block| block.arrive_at_mbarrier(address, 0, false));
}

/// Adds `bytes` to the bytes that copies must deliver in the current phase, and then arrives once.
pub(crate) fn expect(address: u32, bytes: u32) {
    operate(|block| block.arrive_at_mbarrier(address, bytes, true));
}

/// Returns whether the phase with parity `parity` has ended. If it has not, other threads run first.
pub(crate) fn test_wait(address: u32, parity: u32) -> bool {
    with(|block| {
        // If the thread unwinds, return true. Otherwise, a destructor that calls this function in a loop
        // would never end.
        if block.unwinds() {
            return true;
        }
        let place = block.own_place(address, BYTES, BYTES);
        block.try_wait(place, parity).is_some() || {
            let phase = block.mbarrier(place, false, |barrier| barrier.phase);
            block.own_notes().waits_for.set(Some((place.offset, phase)));
            pause(block, State::Polling);
            block.try_wait(place, parity).is_some()
        }
    })
}

/// Waits until the phase with parity `parity` of the mbarrier at `address` has ended.
pub(crate) fn wait(address: u32, parity: u32) {
    operate(|block| {
        let place = block.own_place(address, BYTES, BYTES);
        if block.try_wait(place, parity).is_some() {
            return;
        }
        let phase = block.mbarrier(place, false, |barrier| barrier.phase);
        block.own_notes().waits_for.set(Some((place.offset, phase)));
        pause(block, State::AtMbarrier);
        let now = block.mbarrier(place, false, |barrier| barrier.phase);
        if now != phase + 1 {
            block.raise(FaultKind::MissedPhase { offset: place.offset as usize, phase });
        }
        if block.try_wait(place, parity).is_none() {
            unreachable!("the phase has ended");
        }
    });
}

impl Block {
    /// Returns the place of an address of the own block.
    pub(super) fn own_place(&self, address: u32, bytes: u32, align: u32) -> Place {
        let place = self.place(address, bytes, align);
        if place.rank != self.rank.get() {
            self.raise(FaultKind::RemoteWait { offset: place.offset as usize });
        }
        place
    }

    /// Calls `f` with the mbarrier at `place`. Raises a fault if there is no mbarrier, or if its
    /// initialization is not visible to the running thread. If `copies` is true, an asynchronous copy uses
    /// the mbarrier, and a fence must follow the initialization.
    pub(super) fn mbarrier<R>(&self, place: Place, copies: bool, f: impl FnOnce(&mut Mbarrier) -> R) -> R {
        let cluster = self.activate();
        let mut mbarriers = cluster.mbarriers.borrow_mut();
        let offset = place.offset as usize;
        let Some(barrier) = mbarriers.get_mut(&place) else {
            drop(mbarriers);
            self.raise(FaultKind::NoMbarrier { offset });
        };
        let (agent, time) = barrier.init;
        let ordered = self.clock(|clock| clock.knows(agent, time));
        let after_cluster_barrier =
            barrier.published.is_some_and(|at| self.own_notes().cluster_waits.get() > at);
        if !(ordered || after_cluster_barrier) || copies && barrier.published.is_none() {
            let (by, fenced) = (self.thread_of(agent), barrier.published.is_some());
            drop(mbarriers);
            self.raise(FaultKind::MbarrierNotVisible { offset, by, fenced });
        }
        f(barrier)
    }

    /// Marks the mbarriers that the running thread initialized as published.
    pub(super) fn publish_mbarriers(&self) {
        let (own, arrived) = (self.own_agent(), self.own_notes().cluster_arrivals.get());
        for barrier in self.cluster.mbarriers.borrow_mut().values_mut() {
            if barrier.init.0 == own {
                barrier.published.get_or_insert(arrived);
            }
        }
    }

    /// Arrives at the mbarrier at `address`, and adds `bytes` to the bytes that the phase expects. If
    /// `releases` is false, the arrival does not order the accesses of threads.
    fn arrive_at_mbarrier(&self, address: u32, bytes: u32, releases: bool) {
        let place = self.place(address, BYTES, BYTES);
        let offset = place.offset as usize;
        if bytes > MAX_COUNT {
            self.raise(FaultKind::MbarrierCount { offset, count: bytes });
        }
        self.cluster.note_progress();
        let fault = self.mbarrier(place, false, |barrier| {
            if barrier.missing == 0 {
                return Some(FaultKind::MbarrierCount { offset, count: 0 });
            }
            barrier.bytes += i64::from(bytes);
            barrier.expected += i64::from(bytes);
            barrier.missing -= 1;
            if barrier.bytes > i64::from(MAX_COUNT) {
                return Some(FaultKind::MbarrierCount { offset, count: barrier.bytes as u32 });
            }
            barrier.surplus(offset)
        });
        if let Some(fault) = fault {
            self.raise(fault);
        }
        let cluster = self.activate();
        {
            let (mut mbarriers, mut clocks) = (cluster.mbarriers.borrow_mut(), cluster.clocks.borrow_mut());
            let (barrier, clock) =
                (mbarriers.get_mut(&place).expect("exists"), &mut clocks[self.own_agent() as usize]);
            let remote = place.rank != self.rank.get();
            if releases {
                if remote {
                    cluster.remote.borrow_mut()[place.rank as usize].insert(clock.agent, clock.now);
                }
                barrier.gate.add(clock);
            } else {
                if remote {
                    barrier.remote.insert(clock.agent, (clock.now, barrier.phase + 1));
                }
                barrier.gate.add_asynchronous(clock, cluster.blocks.get() * self.threads());
            }
        }
        cluster.end_phase(place);
    }

    /// Counts a copy of `bytes` bytes that starts in the current phase of the mbarrier at `place`. Returns
    /// the agent number of the mbarrier, which identifies it as a source of accesses, and the number of the
    /// phase, counted from 1.
    pub(super) fn count_copy(&self, place: Place, bytes: u32) -> (u32, u32) {
        let (agent, time, fault) = self.mbarrier(place, true, |barrier| {
            barrier.started += i64::from(bytes);
            (barrier.agent, barrier.phase + 1, barrier.surplus(place.offset as usize))
        });
        if let Some(fault) = fault {
            self.raise(fault);
        }
        (agent, time)
    }

    /// Returns the fault of a block that exits before any of its threads has seen the end of a copy. The copy
    /// ends with phase `time` (numbered from 1) of the mbarrier whose agent number is `agent`. Returns `None`
    /// if this block has no such mbarrier.
    pub(super) fn unobserved_copy(&self, agent: u32, time: u32) -> Option<FaultKind> {
        let mbarriers = self.cluster.mbarriers.borrow();
        let mut own = mbarriers.iter().filter(|(place, _)| place.rank == self.rank.get());
        let (place, _) = own.find(|(_, barrier)| barrier.agent == agent)?;
        Some(FaultKind::UnobservedCopy { mbarrier: place.offset as usize, phase: time - 1 })
    }

    /// Tests whether the phase with parity `parity` has ended. If it has, the events before its end become
    /// part of the running thread's knowledge. If it has not, the function returns `None`.
    fn try_wait(&self, place: Place, parity: u32) -> Option<()> {
        let own = self.own_agent();
        let done = self.mbarrier(place, false, |barrier| {
            if barrier.phase % 2 == parity % 2 {
                return None;
            }
            let seen = barrier.seen.entry(own).or_insert((u32::MAX, false));
            *seen = (barrier.phase, seen.0 == barrier.phase);
            Some(barrier.done.clone())
        })?;
        self.clock(|clock| self.cluster.acquirer.borrow_mut().acquire(clock, &done));
        Some(())
    }

    /// Returns the fault for an access to bytes that an asynchronous copy writes, if the running thread has
    /// not waited for this copy. `copy` is the write by the copy. Returns `None` if the copy does not use an
    /// mbarrier.
    pub(super) fn unfinished(
        &self,
        copy: SharedAccess,
        offset: usize,
        bytes: usize,
        writes: bool,
    ) -> Option<FaultKind> {
        let By::Copy(_) = copy.by else { return None };
        let mbarriers = self.cluster.mbarriers.borrow();
        let (place, barrier) = mbarriers.iter().find(|(_, barrier)| barrier.agent == copy.agent)?;
        let (mbarrier, phase) = (place.offset as usize, copy.time - 1);
        if barrier.seen.get(&self.own_agent()).is_some_and(|&(_, again)| again) {
            return Some(FaultKind::WrongPhase { offset: mbarrier, phase, bytes_at: Some(offset) });
        }
        Some(FaultKind::UnfinishedCopy { offset, bytes, writes, mbarrier, phase })
    }

    /// Returns the fault to report for thread `thread`, which waits at an mbarrier and can never continue.
    pub(super) fn stalled_at_mbarrier(&self, thread: usize) -> FaultKind {
        let (offset, phase) = self.notes[thread].waits_for.get().expect("waits at an mbarrier");
        let place = Place { rank: self.rank.get(), offset };
        let mbarriers = self.cluster.mbarriers.borrow();
        let (barrier, offset) = (&mbarriers[&place], offset as usize);
        let known = self.cluster.clocks.borrow()[self.agent(thread) as usize].seen(barrier.agent);
        if known < phase {
            return FaultKind::WrongPhase { offset, phase, bytes_at: None };
        }
        FaultKind::Mbarrier {
            offset,
            phase,
            missing: barrier.missing,
            arrivals: barrier.arrivals,
            bytes: barrier.bytes,
        }
    }
}

impl Cluster {
    /// Returns whether a thread of another block may still arrive at an mbarrier of block `rank`. Only
    /// arrivals that do not order the thread's own accesses are considered here. The callback `knows` says
    /// whether the clock of a thread of block `rank` contains an event.
    pub(super) fn expects_arrival(&self, rank: u32, knows: impl Fn(u32, u32) -> bool) -> bool {
        let mbarriers = self.mbarriers.borrow();
        let mut own = mbarriers.iter().filter(|(place, _)| place.rank == rank);
        own.any(|(_, barrier)| {
            let known = |(&thread, &(time, phase)): (&u32, &(u32, u32))| {
                knows(barrier.agent, phase) || knows(thread, time)
            };
            !barrier.remote.iter().all(known)
        })
    }

    /// Subtracts `bytes` from the bytes that the current phase still expects, because a copy has ended. If no
    /// bytes and no arrivals are missing any more, ends the phase.
    pub(super) fn complete_bytes(&self, place: Place, bytes: u32) {
        if let Some(barrier) = self.mbarriers.borrow_mut().get_mut(&place) {
            barrier.bytes -= i64::from(bytes);
        }
        self.end_phase(place);
    }

    /// Ends the current phase of an mbarrier if all its arrivals and bytes have been counted.
    fn end_phase(&self, place: Place) {
        let mut mbarriers = self.mbarriers.borrow_mut();
        let Some(barrier) = mbarriers.get_mut(&place).filter(|barrier| barrier.is_complete()) else { return };
        barrier.phase += 1;
        barrier.missing = barrier.arrivals;
        (barrier.expected, barrier.started) = (0, 0);
        barrier.gate.add_event(barrier.agent, barrier.phase);
        barrier.done = barrier.gate.open();
        let block = self.block(place.rank);
        for (state, notes) in block.states().zip(&block.notes) {
            let waits = notes.waits_for.get().is_some_and(|(offset, _)| offset == place.offset);
            if matches!(state.get(), State::AtMbarrier | State::Polling) && waits {
                state.set(State::Ready);
            }
        }
    }
}
