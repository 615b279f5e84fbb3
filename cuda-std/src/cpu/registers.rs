//! `setmaxnreg`: warpgroups give up registers and take registers that others gave up.
use super::block::State;
use super::cluster::pause;
use super::warp::{Operation, converge};
use super::{Block, FaultKind, operate};

/// Registers of an SM.
const REGISTERS: u32 = 1 << 16;
/// Threads of a warpgroup.
const WARP_GROUP: u32 = 128;

/// The registers of a block.
#[derive(Debug)]
pub(super) struct RegisterPool {
    /// Registers per thread, for each warp.
    limits: Vec<u32>,
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

impl Block {
    fn set_registers(&self, count: u32, up: bool) {
        let (thread, warp) = (self.linear_index(), self.linear_index() / 32);
        if !(24..=256).contains(&count) || !count.is_multiple_of(8) {
            self.raise(FaultKind::RegisterCount { count, limit: None });
        }
        if thread as u32 / WARP_GROUP * WARP_GROUP + WARP_GROUP > self.threads() {
            self.raise(FaultKind::RegisterCount { count, limit: None });
        }
        // All lanes execute the instruction together, so the first lane to arrive acts for its warp.
        converge(Operation::RegisterLimit, 0);
        loop {
            match self.take_registers(warp, count, up) {
                Ok(true) => return,
                Ok(false) => pause(self, State::AtRegisters),
                Err(limit) => self.raise(FaultKind::RegisterCount { count, limit: Some(limit) }),
            }
        }
    }

    /// Changes the limit of warp `warp`. Returns false if too few registers are free, and the present limit
    /// if the change has the wrong direction.
    fn take_registers(&self, warp: usize, count: u32, up: bool) -> Result<bool, u32> {
        let cluster = self.activate();
        let mut pools = cluster.pools.borrow_mut();
        let pool = pools.entry(self.rank.get()).or_insert_with(|| {
            let threads = self.threads().next_multiple_of(WARP_GROUP);
            let each = (REGISTERS / threads / 8 * 8).min(256);
            RegisterPool {
                limits: vec![each; self.slots.len().div_ceil(32)],
                free: REGISTERS - each * threads,
            }
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
