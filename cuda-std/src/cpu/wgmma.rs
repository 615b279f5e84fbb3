//! `wgmma`: matrix multiplication by the four warps of a warpgroup.
//!
//! A multiplication reads its operands from shared memory when the first warp waits for it. The executor then
//! computes all 64 rows. As in PTX, a `wgmma` group belongs to the whole warpgroup. A wait for the group
//! returns when all four warps have committed the group. After the wait, the operands of all four warps may
//! be overwritten. Until the thread calls [`settle`], the accumulators contain 0xFF bytes, and the executor
//! reports an access to them.
use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::block::State;
use super::history::{By, SharedAccess};
use super::multiplication::{Left, Multiplication, Started, WARP_ROWS, WARPS, place};
use super::operands::SharedOperand;
use super::tensor_core::{DecodedA, DecodedB};
use super::warp::{Operation, converge};
use super::{Block, FaultKind, operate};

/// Threads of a warpgroup.
const THREADS: usize = 32 * WARPS;

/// The content of accumulator registers from the start of the first multiplication until [`settle`], which
/// writes the results.
const IN_FLIGHT: u32 = u32::MAX;

/// The accumulator registers of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadRegisters {
    at: *mut u32,
    len: usize,
}

impl ThreadRegisters {
    pub fn of(at: *mut u32, len: usize) -> Self {
        Self { at, len }
    }

    /// # Safety
    /// `self` refers to registers of the running thread, and no other reference to them is in use.
    unsafe fn words<'a>(self) -> &'a mut [u32] {
        // SAFETY: the caller guarantees it.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

/// The accumulators of a lane from the start of the first multiplication that uses them until [`settle`],
/// which writes the results.
struct Accumulators {
    at: usize,
    values: Vec<u32>,
    /// The group of the last multiplication.
    group: u32,
}

/// One thread of a warpgroup.
#[derive(Default)]
struct Lane {
    /// Number of multiplications that the lane has started, and the group of the last one.
    started: usize,
    last_group: u32,
    committed: u32,
    /// The last group that the lane has waited for.
    waited: u32,
    accumulators: Vec<Accumulators>,
    /// Number of fences that the lane has executed.
    fences: u32,
    /// For each accumulator, by its address: the number of fences that the lane had executed at the
    /// accumulator's last `settle` or access.
    accessed: FxHashMap<usize, u32>,
    /// The number of fences that the lane had executed at the last `settle` of any accumulator, and at the
    /// last access to any accumulator.
    last_settled: u32,
    last_accessed: u32,
    /// The number of fences that the lane had executed at its last multiplication with the left operand in
    /// registers.
    last_left: u32,
}

/// The multiplications of a warpgroup.
pub(super) struct Queue {
    agent: u32,
    /// Number of the multiplications that are done.
    done: usize,
    started: VecDeque<Started>,
    /// The last group that all lanes have committed.
    committed: u32,
    /// The groups that some lanes, but not all, have committed. For each such group, the number of lanes that
    /// have committed it.
    commits: VecDeque<usize>,
    finished_group: u32,
    /// Threads that wait until other warps commit a group.
    waiting: Vec<usize>,
    lanes: Vec<Lane>,
}

impl Block {
    fn warpgroup_key(&self, thread: usize) -> u32 {
        self.rank.get() * self.threads().div_ceil(THREADS as u32) + (thread / THREADS) as u32
    }

    fn queue<R>(&self, f: impl FnOnce(&mut Queue, usize) -> R) -> R {
        let cluster = self.activate();
        let new = || Queue {
            agent: cluster.new_agent(),
            done: 0,
            started: VecDeque::new(),
            committed: 0,
            commits: VecDeque::new(),
            finished_group: 0,
            waiting: Vec::new(),
            lanes: (0..THREADS).map(|_| Lane::default()).collect(),
        };
        let thread = self.running.get();
        f(cluster.queues.borrow_mut().entry(self.warpgroup_key(thread)).or_insert_with(new), thread % THREADS)
    }

    /// Returns a fault if the running thread has started multiplications and has not waited for them.
    pub(super) fn thread_returns_from_wgmma(&self) -> Result<(), FaultKind> {
        let thread = self.running.get();
        let queues = self.cluster.queues.borrow();
        let Some(queue) = queues.get(&self.warpgroup_key(thread)) else { return Ok(()) };
        let lane = &queue.lanes[thread % THREADS];
        if lane.last_group > lane.waited {
            return Err(FaultKind::WgmmaUnfinished);
        }
        let first = thread / THREADS * THREADS;
        let own = lane.started;
        for other in (0..WARPS).map(|warp| 32 * warp + thread % 32) {
            let slot = self.slots.get(first + other);
            let returned = slot.is_none_or(|slot| slot.state.get() == State::Returned);
            if returned && queue.lanes[other].started != own {
                return Err(FaultKind::WgmmaWarpgroup { own, other: queue.lanes[other].started });
            }
        }
        Ok(())
    }

    /// Returns the first lane of the warpgroup that has not committed the `wgmma` group for which `thread`
    /// waits, and the number of this group.
    fn late_lane(&self, thread: usize) -> (usize, u32) {
        let (group, _) = self.notes[thread].waits_for.get().expect("waits for a group");
        let lanes = &self.cluster.queues.borrow()[&self.warpgroup_key(thread)].lanes;
        (lanes.iter().position(|lane| lane.committed < group).expect("a lane is missing"), group)
    }

    /// Returns whether thread `thread`, which waits for multiplications, waits for a commit by a warp that
    /// has already returned.
    pub(super) fn lacks_returned_warp(&self, thread: usize) -> bool {
        let (lane, _) = self.late_lane(thread);
        let slot = self.slots.get(thread / THREADS * THREADS + lane);
        slot.is_none_or(|slot| slot.state.get() == State::Returned)
    }

    /// Returns the fault to report for thread `thread`, which waits for multiplications and can never
    /// continue.
    pub(super) fn stalled_at_wgmma(&self, thread: usize) -> FaultKind {
        let (lane, group) = self.late_lane(thread);
        let queues = self.cluster.queues.borrow();
        let lanes = &queues[&self.warpgroup_key(thread)].lanes;
        let (own, other) = (&lanes[thread % THREADS], &lanes[lane]);
        if other.started < own.started {
            return FaultKind::WgmmaWarpgroup { own: own.started, other: other.started };
        }
        FaultKind::WgmmaCommit { group, warp: lane as u32 / 32, committed: other.committed }
    }

    /// Records the reads of the operands of the last multiplication that the running thread has started. Does
    /// nothing if another lane with the same vector clock has already recorded these reads.
    fn record_operands(&self, multiplication: &Multiplication, columns: usize) {
        let knowledge = self.clock(|clock| clock.knowledge());
        let (index, agent, group, known) = self.queue(|queue, lane| {
            let index = queue.lanes[lane].started - 1 - queue.done;
            let started = &queue.started[index];
            let known = [&started.left[lane / 32], &started.right]
                .map(|operand| operand.as_ref().is_some_and(|(by, _)| by.is_same(&knowledge)));
            (index, queue.agent, queue.lanes[lane].committed + 1, known)
        });
        let warp = self.running.get() / 32 % WARPS;
        let operand = |descriptor: u64, transposed: bool, first: usize, rows: usize| {
            let bytes = multiplication.elements.bytes();
            let (operand, swizzle) =
                SharedOperand::of(self, descriptor, transposed, bytes, first as u32, rows);
            let access = SharedAccess { agent, time: group, by: By::Wgmma(swizzle) };
            self.record_all(self.rank.get(), 16, operand.chunks.iter().copied(), access, false);
            (knowledge.clone(), operand)
        };
        let [transposed_a, transposed_b] = multiplication.transposed;
        if let Left::Shared(descriptor) = multiplication.a
            && !known[0]
        {
            // A warp reads only its own rows of the left operand. A barrier of this warp is therefore enough
            // between its writes of these rows and the multiplication.
            let left = operand(descriptor, transposed_a, WARP_ROWS * warp, WARP_ROWS);
            self.queue(|queue, _| queue.started[index].left[warp] = Some(left));
        }
        if !known[1] {
            let right = operand(multiplication.b, transposed_b, 0, columns);
            self.queue(|queue, _| queue.started[index].right = Some(right));
        }
    }
}

/// Executes `wgmma.fence`.
pub(crate) fn fence() {
    operate(|block| block.queue(|queue, lane| queue.lanes[lane].fences += 1));
}

/// Starts `multiplication` with the accumulators `d`.
///
/// # Safety
/// `d` refers to the accumulator registers of the running thread.
pub(crate) unsafe fn start(d: ThreadRegisters, multiplication: Multiplication) {
    // SAFETY: the caller passes the thread's registers.
    let registers = unsafe { d.words() };
    operate(|block| {
        if let Err(fault) = block.queue(|queue, lane| queue.start(lane, registers, &multiplication)) {
            block.raise(fault);
        }
        block.record_operands(&multiplication, 2 * d.len);
    });
}

impl Queue {
    fn start(
        &mut self,
        lane: usize,
        registers: &mut [u32],
        multiplication: &Multiplication,
    ) -> Result<(), FaultKind> {
        let (at, columns, own) = (registers.as_ptr().addr(), 2 * registers.len(), &mut self.lanes[lane]);
        let in_flight = own.in_flight(registers)?;
        if in_flight.is_none() && multiplication.add {
            own.check_moved(registers)?;
        }
        if own.is_unfenced(at, in_flight.is_some(), multiplication) {
            return Err(FaultKind::WgmmaFence);
        }
        let (index, group) = (own.started - self.done, own.committed + 1);
        if index == self.started.len() {
            self.started.push_back(Started::new(*multiplication, columns, group));
        }
        let started = &mut self.started[index];
        if let Some((own, other)) = started.multiplication.other_descriptor(multiplication) {
            return Err(FaultKind::WgmmaDescriptor { own, other });
        }
        if !started.multiplication.meets(multiplication)
            || (started.columns, started.group) != (columns, group)
        {
            return Err(FaultKind::WgmmaLanes);
        }
        if let Left::Registers(a) = multiplication.a {
            started.a[lane] = a;
            own.last_left = own.fences;
        }
        started.d[lane] = at;
        own.started += 1;
        own.last_group = group;
        match in_flight {
            Some(known) => own.accumulators[known].group = group,
            None => {
                own.accumulators.push(Accumulators { at, values: registers.to_vec(), group });
                registers.fill(IN_FLIGHT);
            }
        }
        Ok(())
    }
}

impl Lane {
    /// Returns the index of the entry in `accumulators` whose registers are `registers`. Returns `None` if no
    /// multiplication that uses these registers is in flight.
    ///
    /// If a thread has waited for accumulators and then overwrites them without a [`settle`], this method
    /// removes their entry. The kernel no longer needs their values, and another variable may now have their
    /// address.
    fn in_flight(&mut self, registers: &[u32]) -> Result<Option<usize>, FaultKind> {
        let (from, len) = (registers.as_ptr().addr(), registers.len());
        let mut index = 0;
        while let Some(known) = self.accumulators.get(index) {
            let start = known.at.max(from);
            let end = (known.at + 4 * known.values.len()).min(from + 4 * len);
            if start >= end {
                index += 1;
            } else if registers[(start - from) / 4..(end - from) / 4].iter().all(|&word| word == IN_FLIGHT) {
                if (known.at, known.values.len()) != (from, len) {
                    return Err(FaultKind::WgmmaRegisters);
                }
                return Ok(Some(index));
            } else if known.group > self.waited {
                return Err(FaultKind::WgmmaOverwritten);
            } else {
                self.accumulators.swap_remove(index);
            }
        }
        Ok(None)
    }

    /// Returns a fault if `registers` are a copy of accumulators whose multiplication is still in flight. The
    /// caller has checked that `registers` are not these accumulators themselves.
    fn check_moved(&self, registers: &[u32]) -> Result<(), FaultKind> {
        let known = self.accumulators.iter().any(|known| known.values.len() == registers.len());
        if known && registers.iter().all(|&word| word == IN_FLIGHT) {
            return Err(FaultKind::WgmmaMoved);
        }
        Ok(())
    }

    /// Returns whether a required fence is missing between an access of the thread to the registers of
    /// `multiplication` and the multiplication.
    ///
    /// The executor cannot see from which values the left operand in registers was computed. The executor
    /// assumes that it was computed from every accumulator that the thread has settled. For the first
    /// multiplication after a fence, the executor assumes the same for every accumulator that the thread has
    /// accessed. Later multiplications may use registers that were written before the fence.
    fn is_unfenced(&self, at: usize, in_flight: bool, multiplication: &Multiplication) -> bool {
        let accumulators = !in_flight && self.fences <= self.accessed.get(&at).copied().unwrap_or(0);
        let left = matches!(multiplication.a, Left::Registers(_))
            && (self.fences <= self.last_settled
                || self.fences <= self.last_accessed && self.last_left != self.fences);
        accumulators || left
    }
}

/// Closes the open `wgmma` group of the warpgroup.
pub(crate) fn commit() {
    operate(|block| {
        block.queue(|queue, lane| {
            let lane = &mut queue.lanes[lane];
            lane.committed += 1;
            let at = (lane.committed - queue.committed - 1) as usize;
            if at == queue.commits.len() {
                queue.commits.push_back(0);
            }
            queue.commits[at] += 1;
            if queue.commits[0] == THREADS {
                queue.commits.pop_front();
                queue.committed += 1;
                queue.waiting.drain(..).for_each(|thread| block.slots[thread].state.set(State::Ready));
            }
        });
    });
}

/// Waits until all committed groups of the warpgroup, except at most the last `pending` ones, have finished.
pub(crate) fn wait(pending: u32) {
    let target =
        operate(|block| block.queue(|queue, lane| queue.lanes[lane].committed.saturating_sub(pending)));
    let of_first = converge(Operation::WgmmaWait, target);
    operate(|block| {
        if target != of_first {
            block.raise(FaultKind::WgmmaLanes);
        }
        while block.queue(|queue, _| queue.committed < target) {
            if !block.wait_for_commits(target) {
                return;
            }
        }
        if block.queue(|queue, _| queue.lane_skipped(target)) {
            block.raise(FaultKind::WgmmaLanes);
        }
        let agent = block.queue(|queue, lane| {
            if queue.finished_group < target {
                queue.finish(block, target);
            }
            let lane = &mut queue.lanes[lane];
            lane.waited = lane.waited.max(target);
            queue.agent
        });
        block.learn(agent, target);
    });
}

impl Block {
    /// Suspends the running thread until all warps of its warpgroup have committed another group. Returns
    /// false if the thread unwinds and therefore must not wait.
    fn wait_for_commits(&self, target: u32) -> bool {
        let may = self.may_wait(State::AtWgmma);
        if may {
            self.own_notes().waits_for.set(Some((target, 0)));
            self.queue(|queue, _| queue.waiting.push(self.running.get()));
            self.suspend();
        }
        may
    }
}

/// Writes the results of finished multiplications to the accumulators `d`.
///
/// # Safety
/// `d` refers to the accumulator registers of the running thread.
pub(crate) unsafe fn settle(d: ThreadRegisters) {
    operate(|block| {
        if !block.cluster.is_active() {
            return;
        }
        // SAFETY: the caller passes the thread's registers.
        let registers = unsafe { d.words() };
        if let Err(fault) = block.queue(|queue, lane| queue.lanes[lane].settle(registers)) {
            block.raise(fault);
        }
    });
}

impl Lane {
    fn settle(&mut self, registers: &mut [u32]) -> Result<(), FaultKind> {
        let at = registers.as_ptr().addr();
        let was_known = self.accumulators.iter().any(|known| known.at == at);
        let Some(found) = self.in_flight(registers)? else {
            return if was_known { Err(FaultKind::WgmmaOverwritten) } else { self.check_moved(registers) };
        };
        if self.accumulators[found].group > self.waited {
            return Err(FaultKind::WgmmaRegisters);
        }
        registers.copy_from_slice(&self.accumulators.swap_remove(found).values);
        self.accessed.insert(at, self.fences);
        self.last_settled = self.fences;
        Ok(())
    }

    /// Records an access of the thread to accumulators. Returns a fault if the accumulators are in flight.
    fn access(&mut self, registers: &[u32]) -> Result<(), FaultKind> {
        if self.in_flight(registers)?.is_some() {
            return Err(FaultKind::WgmmaRegisters);
        }
        self.check_moved(registers)?;
        self.accessed.insert(registers.as_ptr().addr(), self.fences);
        self.last_accessed = self.fences;
        Ok(())
    }
}

/// Raises a fault if a multiplication may still write `registers`, which the thread accesses.
pub(crate) fn check_settled(registers: &[u32]) {
    operate(|block| {
        if !block.cluster.is_active() {
            return;
        }
        if let Err(fault) = block.queue(|queue, lane| queue.lanes[lane].access(registers)) {
            block.raise(fault);
        }
    });
}

impl Queue {
    /// Returns whether some thread has not started one of the multiplications in the groups up to `target`,
    /// although all threads have committed these groups.
    fn lane_skipped(&self, target: u32) -> bool {
        self.started.iter().take_while(|started| started.group <= target).any(|one| one.d.contains(&0))
    }

    /// Computes all multiplications of the groups up to `target`.
    fn finish(&mut self, block: &Block, target: u32) {
        let (mut a, mut b) = (DecodedA::new(), DecodedB::new());
        let mut current: Option<(Vec<usize>, Vec<u32>)> = None;
        while self.started.front().is_some_and(|started| started.group <= target) {
            let started = self.started.pop_front().expect("there is one");
            self.done += 1;
            if current.as_ref().is_none_or(|(d, _)| *d != started.d) {
                self.scatter(current.take());
                current = Some((started.d.clone(), self.gather(&started.d, started.columns)));
            }
            let (_, matrix) = current.as_mut().expect("was set");
            if !started.multiplication.add {
                matrix.fill(0);
            }
            started.multiply(block, matrix, &mut a, &mut b);
        }
        self.scatter(current);
        self.finished_group = target;
    }

    /// Reads the accumulators of all threads of the warpgroup. Returns them as a matrix of 64 rows.
    fn gather(&self, d: &[usize], columns: usize) -> Vec<u32> {
        let mut matrix = vec![0; WARPS * WARP_ROWS * columns];
        for (thread, (lane, &at)) in self.lanes.iter().zip(d).enumerate() {
            let known = lane.accumulators.iter().find(|known| known.at == at).expect("has started");
            for (register, &value) in known.values.iter().enumerate() {
                matrix[place(thread, register, columns)] = value;
            }
        }
        matrix
    }

    fn scatter(&mut self, current: Option<(Vec<usize>, Vec<u32>)>) {
        let Some((d, matrix)) = current else { return };
        let columns = matrix.len() / (WARPS * WARP_ROWS);
        for (thread, (lane, at)) in self.lanes.iter_mut().zip(d).enumerate() {
            let known = lane.accumulators.iter_mut().find(|known| known.at == at).expect("has started");
            for (register, value) in known.values.iter_mut().enumerate() {
                *value = matrix[place(thread, register, columns)];
            }
        }
    }
}
