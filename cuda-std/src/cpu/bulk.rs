//! Bulk copies without a tensor map (`cp.async.bulk`), and the bulk groups of a thread.
use super::cluster::{Cluster, Place};
use super::history::{By, SharedAccess};
use super::{Block, FaultKind, operate};

/// The bulk groups of a thread. Groups are numbered from 1.
#[derive(Debug)]
pub(super) struct BulkGroups {
    agent: u32,
    committed: u32,
    /// Number of the group of the last copy.
    last: u32,
}

impl Block {
    /// Adds a copy that reads `bytes` bytes of shared memory at `from` to the open bulk group of the running
    /// thread. Returns two numbers: the agent, which identifies the thread's bulk groups as a source of
    /// asynchronous accesses, and the number of the group.
    pub(super) fn start_group_copy(&self, from: Place, bytes: u32) -> (u32, u32) {
        let (agent, time) = self.groups(|groups| {
            groups.last = groups.committed + 1;
            (groups.agent, groups.last)
        });
        self.record(from, bytes, SharedAccess { agent, time, by: By::Copy(None) }, false);
        (agent, time)
    }

    fn groups<R>(&self, f: impl FnOnce(&mut BulkGroups) -> R) -> R {
        let cluster = self.activate();
        let mut bulk = cluster.bulk.borrow_mut();
        let new = || BulkGroups { agent: cluster.new_agent(), committed: 0, last: 0 };
        f(bulk.entry(self.own_agent()).or_insert_with(new))
    }

    /// Returns a fault if the running thread has started bulk copies from shared memory and has not waited
    /// for them.
    pub(super) fn thread_returns_from_bulk(&self) -> Result<(), FaultKind> {
        let bulk = self.cluster.bulk.borrow();
        let Some(groups) = bulk.get(&self.own_agent()) else { return Ok(()) };
        let known = self.cluster.clocks.borrow()[self.own_agent() as usize].seen(groups.agent);
        if known < groups.last {
            return Err(FaultKind::UnfinishedStore { committed: groups.last <= groups.committed });
        }
        Ok(())
    }
}

/// Closes the open bulk group of the running thread.
pub(crate) fn bulk_commit() {
    operate(|block| block.groups(|groups| groups.committed += 1));
}

/// Waits until all bulk groups of the running thread, except at most the last `pending` ones, have read their
/// bytes. If `writes` is true, these groups must also have written their bytes.
pub(crate) fn bulk_wait(pending: u32, writes: bool) {
    operate(|block| {
        let (agent, last) = block.groups(|groups| (groups.agent, groups.committed.saturating_sub(pending)));
        block.cluster.complete_groups(agent, last, writes);
        block.learn(agent, last);
    });
}

/// Starts a copy of `bytes` bytes of global memory to shared memory. The mbarrier at `barrier` counts the
/// bytes that arrive.
///
/// # Safety
/// `from` points to `bytes` readable bytes until the copy ends.
pub(crate) unsafe fn bulk_copy(to: u32, from: *const u8, bytes: u32, barrier: u32) {
    operate(|block| {
        block.check_bulk(from.addr(), bytes);
        let (to, barrier) = (block.place(to, bytes, 16), block.place(barrier, 8, 8));
        block.start_copy(to, barrier, bytes, By::Copy(None));
        let pointer = block.pointer(to);
        let run = move |cluster: &Cluster| {
            // SAFETY: the caller passes readable bytes. `place` checked the destination.
            unsafe { from.copy_to_nonoverlapping(pointer, bytes as usize) };
            cluster.complete_bytes(barrier, bytes);
        };
        block.push_load(vec![to], Box::new(run));
    });
}

/// Starts a copy of `bytes` bytes of shared memory to global memory, in the open bulk group.
///
/// # Safety
/// `to` points to `bytes` writable bytes until the copy ends.
pub(crate) unsafe fn bulk_store(to: *mut u8, from: u32, bytes: u32) {
    operate(|block| {
        block.check_bulk(to.addr(), bytes);
        let from = block.own_place(from, bytes, 16);
        let group = block.start_group_copy(from, bytes);
        // SAFETY: the caller passes writable bytes.
        let write = move |read: &[u8]| unsafe { to.copy_from_nonoverlapping(read.as_ptr(), read.len()) };
        block.push_store(from, bytes, group, Box::new(write));
    });
}

/// Starts a copy of `bytes` bytes from the shared memory of the running block to another block of the
/// cluster. The mbarrier at `barrier`, in that other block, counts the bytes that arrive.
pub(crate) fn bulk_send(to: u32, from: u32, bytes: u32, barrier: u32) {
    operate(|block| {
        block.check_bulk(0, bytes);
        let (to, barrier) = (block.place(to, bytes, 16), block.place(barrier, 8, 8));
        let from = block.own_place(from, bytes, 16);
        let (agent, time) = block.mbarrier(barrier, true, |barrier| (barrier.agent, barrier.phase + 1));
        block.record(from, bytes, SharedAccess { agent, time, by: By::Copy(None) }, false);
        block.cluster.remote.borrow_mut()[from.rank as usize].insert(agent, time);
        block.start_copy(to, barrier, bytes, By::Copy(None));
        let (source, target) = (block.pointer(from), block.pointer(to));
        let run = move |cluster: &Cluster| {
            // SAFETY: `place` and `own_place` checked both ranges.
            unsafe { source.copy_to(target, bytes as usize) };
            cluster.complete_bytes(barrier, bytes);
        };
        block.push_load(vec![to, from], Box::new(run));
    });
}

impl Block {
    fn check_bulk(&self, address: usize, bytes: u32) {
        for number in [address, bytes as usize] {
            if !number.is_multiple_of(16) {
                self.raise(FaultKind::Misaligned { address: number, bytes: 16 });
            }
        }
    }
}
