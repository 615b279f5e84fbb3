//! `wgmma`: matrix multiplication by the four warps of a warpgroup.
//!
//! Each warp computes 16 of the 64 rows, so the executor runs each warp's part by itself. A multiplication
//! reads its operands from shared memory when the warp waits for it. Until [`settle`], the accumulators
//! contain 0xFF bytes, and the executor reports an access to them.
use std::collections::{HashMap, VecDeque};

use super::block::State;
use super::history::{By, SharedAccess};
use super::multiplication::{Left, Multiplication, ROWS, Started, place};
use super::operands::SharedOperand;
use super::tensor_core::{DecodedA, DecodedB};
use super::warp::{Operation, converge};
use super::{Block, FaultKind, operate};

/// Warps of a warpgroup.
const WARPS: u32 = 4;

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
}

/// The accumulators of a lane between the start of the first multiplication and [`settle`].
struct Accumulators {
    at: usize,
    values: Vec<u32>,
    /// The group of the last multiplication.
    group: u32,
}

#[derive(Default)]
struct Lane {
    /// Number of multiplications that the lane has started.
    started: usize,
    committed: u32,
    accumulators: Vec<Accumulators>,
    /// Number of fences that the lane has executed.
    fences: u32,
    /// The value of `fences` at the last `settle` of each accumulator, by its address. `last_settled` is the
    /// value at the last `settle` of any accumulator.
    settled: HashMap<usize, u32>,
    last_settled: u32,
}

/// The multiplications of a warp.
pub(super) struct Queue {
    agent: u32,
    /// Number of the multiplications that are done.
    done: usize,
    started: VecDeque<Started>,
    finished_group: u32,
    lanes: Vec<Lane>,
}

impl Block {
    fn warp_key(&self, thread: usize) -> u32 {
        self.rank.get() * self.threads().div_ceil(32) + thread as u32 / 32
    }

    fn queue<R>(&self, f: impl FnOnce(&mut Queue, usize) -> R) -> R {
        let cluster = self.activate();
        let new = || Queue {
            agent: cluster.new_agent(),
            done: 0,
            started: VecDeque::new(),
            finished_group: 0,
            lanes: (0..32).map(|_| Lane::default()).collect(),
        };
        let thread = self.running.get();
        f(cluster.queues.borrow_mut().entry(self.warp_key(thread)).or_insert_with(new), thread % 32)
    }

    /// Returns a fault if the running thread has not waited for its multiplications.
    pub(super) fn thread_returns_from_wgmma(&self) -> Result<(), FaultKind> {
        let thread = self.running.get();
        let queues = self.cluster.queues.borrow();
        let Some(queue) = queues.get(&self.warp_key(thread)) else { return Ok(()) };
        if queue.lanes[thread % 32].started > queue.done {
            return Err(FaultKind::WgmmaUnfinished);
        }
        let first = thread as u32 / 32 / WARPS * WARPS * 32;
        let count = |warp: u32| {
            let queue = queues.get(&self.warp_key((first + 32 * warp) as usize));
            queue.map_or(0, |queue| queue.lanes[thread % 32].started)
        };
        let own = count(thread as u32 / 32 % WARPS);
        let returned = |warp: u32| {
            let slot = self.slots.get((first + 32 * warp) as usize + thread % 32);
            slot.is_none_or(|slot| slot.state.get() == State::Returned)
        };
        match (0..WARPS).find(|&warp| returned(warp) && count(warp) != own) {
            Some(warp) => Err(FaultKind::WgmmaWarpgroup { own, other: count(warp) }),
            None => Ok(()),
        }
    }

    /// Records the reads of the multiplication that the running thread has started last. If another lane has
    /// recorded them and this lane has the same knowledge, there is nothing to do.
    fn record_operands(&self, multiplication: &Multiplication, columns: usize) {
        let knowledge = self.clock(|clock| clock.knowledge());
        let (index, agent, group, known) = self.queue(|queue, lane| {
            let index = queue.lanes[lane].started - 1 - queue.done;
            let known = queue.started[index].operands.as_ref().is_some_and(|(by, ..)| by.is_same(&knowledge));
            (index, queue.agent, queue.lanes[lane].committed + 1, known)
        });
        if known {
            return;
        }
        let operand = |descriptor: u64, transposed: bool, first: u32, rows: usize| {
            let bytes = multiplication.elements.bytes();
            let (operand, swizzle) = SharedOperand::of(self, descriptor, transposed, bytes, first, rows);
            let access = SharedAccess { agent, time: group, by: By::Wgmma(swizzle) };
            self.record_all(self.rank.get(), 16, operand.chunks.iter().copied(), access, false);
            operand
        };
        let [transposed_a, transposed_b] = multiplication.transposed;
        let first = self.running.get() as u32 / 32 % WARPS * ROWS as u32;
        let a = match multiplication.a {
            Left::Shared(descriptor) => Some(operand(descriptor, transposed_a, first, ROWS)),
            Left::Registers(_) => None,
        };
        let b = operand(multiplication.b, transposed_b, 0, columns);
        self.queue(|queue, _| queue.started[index].operands = Some((knowledge, a, b)));
    }
}

/// Executes `wgmma.fence`.
pub(crate) fn fence() {
    operate(|block| block.queue(|queue, lane| queue.lanes[lane].fences += 1));
}

/// Starts `multiplication` with the accumulators `d`.
///
/// # Safety
/// `d` are the registers of the running thread.
pub(crate) unsafe fn start(d: ThreadRegisters, multiplication: Multiplication) {
    operate(|block| {
        let columns = 2 * d.len;
        let at = d.at.addr();
        let fault = block.queue(|queue, lane| {
            let unfenced = queue.lanes[lane].is_unfenced(at, &multiplication);
            if unfenced {
                return Some(FaultKind::WgmmaFence);
            }
            let index = queue.lanes[lane].started - queue.done;
            let group = queue.lanes[lane].committed + 1;
            if index == queue.started.len() {
                queue.started.push_back(Started {
                    multiplication,
                    group,
                    a: [[0; 4]; 32],
                    d: [0; 32],
                    columns,
                    operands: None,
                });
            }
            let started = &mut queue.started[index];
            let same = started.multiplication.meets(&multiplication);
            if !same || (started.group, started.columns) != (group, columns) {
                return Some(FaultKind::WgmmaLanes);
            }
            if let Left::Registers(a) = multiplication.a {
                started.a[lane] = a;
            }
            started.d[lane] = at;
            let lane = &mut queue.lanes[lane];
            lane.started += 1;
            match lane.accumulators.iter_mut().find(|known| known.at == at) {
                Some(known) => known.group = group,
                None => {
                    // SAFETY: the caller passes the thread's registers.
                    let registers = unsafe { std::slice::from_raw_parts_mut(d.at, d.len) };
                    let values = registers.to_vec();
                    registers.fill(u32::MAX);
                    lane.accumulators.push(Accumulators { at, values, group });
                }
            }
            None
        });
        if let Some(fault) = fault {
            block.raise(fault);
        }
        block.record_operands(&multiplication, columns);
    });
}

impl Lane {
    /// Whether a fence is missing between an access of the thread to the registers of a multiplication and
    /// this multiplication.
    fn is_unfenced(&self, at: usize, multiplication: &Multiplication) -> bool {
        if self.accumulators.iter().any(|known| known.at == at)
            && !matches!(multiplication.a, Left::Registers(_))
        {
            return false;
        }
        let since = match multiplication.a {
            Left::Registers(_) => self.last_settled,
            Left::Shared(_) => self.settled.get(&at).copied().unwrap_or(0),
        };
        self.fences <= since
    }
}

/// Closes the open `wgmma` group of the warp.
pub(crate) fn commit() {
    operate(|block| block.queue(|queue, lane| queue.lanes[lane].committed += 1));
}

/// Waits until at most the last `pending` groups of the warp are unfinished.
pub(crate) fn wait(pending: u32) {
    let target =
        operate(|block| block.queue(|queue, lane| queue.lanes[lane].committed.saturating_sub(pending)));
    let of_first = converge(Operation::WgmmaWait, target);
    operate(|block| {
        let skipped = block.queue(|queue, _| queue.lane_skipped(target));
        if target != of_first || skipped {
            block.raise(FaultKind::WgmmaLanes);
        }
        let agent = block.queue(|queue, _| queue.agent);
        block.queue(|queue, _| queue.finish(block, target));
        block.learn(agent, target);
    });
}

/// Writes the results of finished multiplications to the accumulators `d`.
///
/// # Safety
/// `d` are the registers of the running thread.
pub(crate) unsafe fn settle(d: ThreadRegisters) {
    operate(|block| {
        if !block.cluster.is_active() {
            return;
        }
        let at = d.at.addr();
        let early = block.queue(|queue, lane| {
            let (finished, lane) = (queue.finished_group, &mut queue.lanes[lane]);
            let found = lane.accumulators.iter().position(|known| known.at == at)?;
            if lane.accumulators[found].group > finished {
                return Some(FaultKind::WgmmaRegisters);
            }
            let known = lane.accumulators.swap_remove(found);
            // SAFETY: the caller passes the thread's registers.
            unsafe { std::slice::from_raw_parts_mut(d.at, d.len) }.copy_from_slice(&known.values);
            lane.settled.insert(at, lane.fences);
            lane.last_settled = lane.fences;
            None
        });
        if let Some(fault) = early {
            block.raise(fault);
        }
    });
}

/// Raises a fault if a multiplication may still write the `len` registers at `registers`.
pub(crate) fn check_settled(registers: *const u32, len: usize) {
    operate(|block| {
        if !block.cluster.is_active() {
            return;
        }
        let (from, to) = (registers.addr(), registers.addr() + 4 * len);
        let pending = block.queue(|queue, lane| {
            let overlaps = |known: &Accumulators| known.at < to && from < known.at + 4 * known.values.len();
            queue.lanes[lane].accumulators.iter().any(overlaps)
        });
        if pending {
            block.raise(FaultKind::WgmmaRegisters);
        }
    });
}

impl Queue {
    /// Returns whether a lane has not started a multiplication of the groups up to `target`.
    fn lane_skipped(&self, target: u32) -> bool {
        self.started.iter().take_while(|started| started.group <= target).any(|one| one.d.contains(&0))
    }

    /// Computes all multiplications of the groups up to `target`.
    fn finish(&mut self, block: &Block, target: u32) {
        let (mut a, mut b) = (DecodedA::new(), DecodedB::new());
        let mut current: Option<([usize; 32], Vec<u32>)> = None;
        while self.started.front().is_some_and(|started| started.group <= target) {
            let started = self.started.pop_front().expect("there is one");
            self.done += 1;
            if current.as_ref().is_none_or(|(d, _)| *d != started.d) {
                self.scatter(current.take());
                current = Some((started.d, self.gather(&started.d)));
            }
            let (_, matrix) = current.as_mut().expect("was set");
            if !started.multiplication.add {
                matrix.fill(0);
            }
            started.multiply(block, matrix, &mut a, &mut b);
        }
        self.scatter(current);
        self.finished_group = self.finished_group.max(target);
    }

    /// Returns the accumulators of the warp as a matrix of 16 rows.
    fn gather(&self, d: &[usize; 32]) -> Vec<u32> {
        let columns = 2 * self.accumulators(0, d[0]).len();
        let mut matrix = vec![0; ROWS * columns];
        for lane in 0..32 {
            for (register, &value) in self.accumulators(lane, d[lane]).iter().enumerate() {
                matrix[place(lane, register, columns)] = value;
            }
        }
        matrix
    }

    fn scatter(&mut self, current: Option<([usize; 32], Vec<u32>)>) {
        let Some((d, matrix)) = current else { return };
        for lane in 0..32 {
            let known = self.lanes[lane].accumulators.iter_mut().find(|known| known.at == d[lane]);
            let values = &mut known.expect("has started").values;
            for (register, value) in values.iter_mut().enumerate() {
                *value = matrix[place(lane, register, matrix.len() / ROWS)];
            }
        }
    }

    fn accumulators(&self, lane: usize, at: usize) -> &[u32] {
        let known = self.lanes[lane].accumulators.iter().find(|known| known.at == at);
        &known.expect("has started").values
    }
}
