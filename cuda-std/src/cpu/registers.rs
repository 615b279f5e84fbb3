//! `setmaxnreg`: some warpgroups give up registers, and other warpgroups take these registers.
use super::block::State;
use super::warp::{Operation, converge};
use super::{Block, FaultKind, operate};

/// Registers of an SM.
const REGISTERS: u32 = 1 << 16;
/// Threads of a warpgroup.
const WARP_GROUP: u32 = 128;

/// The registers of a block. At the launch, each thread gets the same number of registers, and the pool of
/// free registers is empty. The remaining registers of the SM are not available to any block.
#[derive(Debug)]
pub(super) struct RegisterPool {
    /// Registers per thread, for each warp.
    limits: Vec<u32>,
    /// The arguments of the instructions that each warp has executed.
    executed: Vec<Vec<u32>>,
    /// Registers that no warp has.
    free: u32,
}

/// Lowers the limit of registers of the running thread's warp to `count` (`setmaxnreg.dec`).
pub(crate) fn registers_down(count: u32) {
    operate(|block| block.set_registers(count, false));
}

/// Raises the limit of registers of the running thread's warp to `count` (`setmaxnreg.inc`). Waits until
/// other warps have given up enough registers.
pub(crate) fn registers_up(count: u32) {
    operate(|block| block.set_registers(count, true));
}

/// Returns the warps of the warpgroup of warp `warp`.
fn warpgroup(warp: usize) -> core::ops::Range<usize> {
    let first = warp / 4 * 4;
    first..first + 4
}

impl Block {
    fn set_registers(&self, count: u32, up: bool) {
        let (thread, warp) = (self.linear_index(), self.linear_index() / 32);
        if !(24..=256).contains(&count) || !count.is_multiple_of(8) {
            self.raise(FaultKind::RegisterCount { count, limit: None });
        }
        if thread as u32 / WARP_GROUP * WARP_GROUP + WARP_GROUP > self.threads() {
            self.raise(FaultKind::RegisterCount { count, limit: None });
        }
        // All lanes of a warp execute the instruction together, so the first lane that arrives changes the
        // limit for the whole warp.
        converge(Operation::RegisterLimit, 0);
        loop {
            match self.take_registers(warp, count, up) {
                Ok(true) => break,
                Ok(false) if self.may_wait(State::AtRegisters) => self.suspend(),
                Ok(false) => return,
                Err(limit) => self.raise(FaultKind::RegisterCount { count, limit: Some(limit) }),
            }
        }
        if thread.is_multiple_of(32) {
            self.note_setmaxnreg(warp, count);
        }
    }

    /// Notes that warp `warp` has executed `setmaxnreg` with `count`.
    fn note_setmaxnreg(&self, warp: usize, count: u32) {
        let mut pools = self.cluster.pools.borrow_mut();
        let pool = pools.get_mut(&self.rank.get()).expect("has taken registers");
        pool.executed[warp].push(count);
        let at = pool.executed[warp].len() - 1;
        let other = warpgroup(warp).find_map(|other| pool.executed[other].get(at).filter(|&&c| c != count));
        if let Some(&other) = other {
            drop(pools);
            self.raise(FaultKind::RegisterWarps { own: Some(count), other: Some(other) });
        }
    }

    /// Returns a fault if the warp of the running thread has executed more or fewer `setmaxnreg` than a warp
    /// of its warpgroup that has returned. Only the first lane of a warp records the instructions of the
    /// warp, so only first lanes are compared.
    pub(super) fn thread_returns_from_registers(&self) -> Result<(), FaultKind> {
        let pools = self.cluster.pools.borrow();
        let Some(pool) = pools.get(&self.rank.get()) else { return Ok(()) };
        let warp = self.running.get() / 32;
        if !self.running.get().is_multiple_of(32) {
            return Ok(());
        }
        let own = &pool.executed[warp];
        let first_of = |other: usize| self.slots.get(32 * other).map(|slot| slot.state.get());
        for other in warpgroup(warp) {
            let Some(theirs) = pool.executed.get(other) else { continue };
            if theirs.len() != own.len() && first_of(other) == Some(State::Returned) {
                let at = own.len().min(theirs.len());
                let (own, other) = (own.get(at).copied(), theirs.get(at).copied());
                return Err(FaultKind::RegisterWarps { own, other });
            }
        }
        Ok(())
    }

    /// Changes the register limit of warp `warp` to `count`. Returns `Ok(false)` if too few registers are
    /// free. If `count` is below the present limit for `.inc`, or above it for `.dec`, returns the present
    /// limit as an error.
    fn take_registers(&self, warp: usize, count: u32, up: bool) -> Result<bool, u32> {
        let cluster = self.activate();
        let mut pools = cluster.pools.borrow_mut();
        let pool = pools.entry(self.rank.get()).or_insert_with(|| {
            let each = (REGISTERS / self.threads().next_multiple_of(WARP_GROUP) / 8 * 8).min(256);
            let warps = self.slots.len().div_ceil(32);
            RegisterPool { limits: vec![each; warps], executed: vec![Vec::new(); warps], free: 0 }
        });
        let limit = pool.limits[warp];
        if limit == count {
            return Ok(true);
        }
        if up != (count > limit) {
            return Err(limit);
        }
        if up && pool.free < (count - limit) * 32 {
            return Ok(false);
        }
        pool.free = pool.free + limit * 32 - count * 32;
        pool.limits[warp] = count;
        if !up {
            self.wake(State::AtRegisters);
        }
        Ok(true)
    }

    /// Returns the fault of a thread that waits for registers and cannot continue.
    pub(super) fn stalled_at_registers(&self) -> FaultKind {
        FaultKind::Registers { free: self.cluster.pools.borrow()[&self.rank.get()].free }
    }
}
