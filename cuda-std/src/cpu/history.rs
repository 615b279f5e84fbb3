//! The history of each unit of shared memory: its last write, and the reads since then. With the clocks of
//! the threads, the histories show which accesses are not ordered.
//!
//! Neighbouring units mostly have the same history. A unit therefore has only the number of its history, and
//! each history is stored once.
use core::ops::Range;

use rustc_hash::FxHashMap;

use super::clock::Clock;

/// Histories are kept per unit of this many bytes, as in [`race`](super::race).
pub(super) const UNIT: usize = 2;

/// The layout of 16-byte chunks in the rows of a tile, as TMA and the descriptors of `wgmma` name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// No swizzle.
    None,
    /// Rows of 32 bytes.
    B32,
    /// Rows of 64 bytes.
    B64,
    /// Rows of 128 bytes.
    B128,
}

impl Swizzle {
    /// Bytes of a row.
    pub const fn row(self) -> u32 {
        match self {
            Self::None => 16,
            Self::B32 => 32,
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }

    /// Returns the address at which the hardware places the byte with this address of the tile.
    pub const fn place(self, address: u32) -> u32 {
        let chunks = match self {
            Self::None => 0,
            Self::B32 => 0x10,
            Self::B64 => 0x30,
            Self::B128 => 0x70,
        };
        address ^ (address >> 3 & chunks)
    }
}

/// Who makes an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum By {
    /// A load or store of a thread.
    Thread,
    /// A `wgmma` that reads an operand with this layout.
    Wgmma(Swizzle),
    /// An asynchronous copy whose tile has this layout. `None` for TMA stores and for copies without a tile.
    Copy(Option<Swizzle>),
}

/// An access to shared memory. An access of a thread is an event of this thread. The agent of an asynchronous
/// access is an mbarrier, the bulk groups of a thread, or the `wgmma` groups of a warp. The time is the
/// number, from 1, of the phase or group that ends with the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SharedAccess {
    pub agent: u32,
    pub time: u32,
    pub by: By,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct History {
    write: Option<SharedAccess>,
    reads: Vec<SharedAccess>,
}

/// Why an access must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// Nothing orders it and this earlier access. `wrote` says whether the earlier access is a write.
    Unordered { earlier: SharedAccess, wrote: bool },
    /// It reads through the async proxy what a thread wrote, without a proxy fence.
    Unfenced { earlier: SharedAccess },
    /// It reads a tile that was written with another swizzle.
    Swizzled { written: Swizzle },
}

/// All histories of a cluster. Number 0 is the empty history.
#[derive(Debug)]
pub(super) struct Histories {
    all: Vec<History>,
    numbers: FxHashMap<History, u32>,
    /// A cache of the numbers that `after` returns. The key has the history before the access, the access,
    /// whether it writes, and the agent and time of its thread. Agent and time determine the knowledge of the
    /// thread.
    next: FxHashMap<(u32, SharedAccess, bool, [u32; 2]), u32>,
}

impl Default for Histories {
    fn default() -> Self {
        let none = History::default();
        Self {
            all: vec![none.clone()],
            numbers: [(none, 0)].into_iter().collect(),
            next: FxHashMap::default(),
        }
    }
}

impl Histories {
    /// Records an access to some ranges of `units`. `clock` is the clock of the thread that makes it or
    /// starts it. If the access is not ordered, returns the conflict and the range.
    pub fn record(
        &mut self,
        units: &mut [u32],
        ranges: impl Iterator<Item = Range<usize>>,
        access: SharedAccess,
        writes: bool,
        clock: &Clock,
    ) -> Result<(), (Conflict, Range<usize>)> {
        let (mut before, mut after) = (u32::MAX, 0);
        for range in ranges {
            for unit in &mut units[range.clone()] {
                if *unit != before {
                    before = *unit;
                    after = self.after(before, access, writes, clock).map_err(|why| (why, range.clone()))?;
                }
                *unit = after;
            }
        }
        Ok(())
    }

    fn after(
        &mut self,
        before: u32,
        access: SharedAccess,
        writes: bool,
        clock: &Clock,
    ) -> Result<u32, Conflict> {
        let key = (before, access, writes, [clock.agent, clock.now]);
        if let Some(&known) = self.next.get(&key) {
            return Ok(known);
        }
        let history = &self.all[before as usize];
        if let Some(conflict) = conflict(history, access, writes, clock) {
            return Err(conflict);
        }
        let history = if writes {
            History { write: Some(access), reads: Vec::new() }
        } else {
            // A later write that knows of this access also knows of the reads before it.
            let unknown = |read: &&SharedAccess| **read != access && !clock.knows(read.agent, read.time);
            let mut reads: Vec<_> = history.reads.iter().filter(unknown).copied().collect();
            reads.push(access);
            History { write: history.write, reads }
        };
        let after = self.number(history);
        self.next.insert(key, after);
        Ok(after)
    }

    /// Returns the history `before` with an access that is known not to race.
    pub fn extended(&mut self, before: u32, access: SharedAccess, writes: bool) -> u32 {
        let mut history = self.all[before as usize].clone();
        if writes {
            history.write = Some(access);
        } else if !history.reads.contains(&access) {
            history.reads.push(access);
        }
        self.number(history)
    }

    fn number(&mut self, history: History) -> u32 {
        if let Some(&number) = self.numbers.get(&history) {
            return number;
        }
        let number = self.all.len() as u32;
        self.all.push(history.clone());
        self.numbers.insert(history, number);
        number
    }
}

fn conflict(history: &History, access: SharedAccess, writes: bool, clock: &Clock) -> Option<Conflict> {
    if let Some(write) = history.write {
        if !clock.knows(write.agent, write.time) {
            return Some(Conflict::Unordered { earlier: write, wrote: true });
        }
        let proxy = !writes && access.by != By::Thread && write.by == By::Thread;
        if proxy && !clock.knows_fenced(write.agent, write.time) {
            return Some(Conflict::Unfenced { earlier: write });
        }
        if let (By::Wgmma(read), By::Copy(Some(written))) = (access.by, write.by)
            && read != written
        {
            return Some(Conflict::Swizzled { written });
        }
    }
    let unordered = |read: &&SharedAccess| !clock.knows(read.agent, read.time);
    let read = history.reads.iter().find(unordered).filter(|_| writes);
    read.map(|&earlier| Conflict::Unordered { earlier, wrote: false })
}

#[cfg(test)]
mod tests {
    use core::iter::once;

    use super::super::clock::{Acquirer, Gate};
    use super::*;

    fn access(clock: &Clock) -> SharedAccess {
        SharedAccess { agent: clock.agent, time: clock.now, by: By::Thread }
    }

    #[test]
    fn reads_of_many_threads_are_kept_until_a_write_knows_them() {
        let mut clocks = Clock::of_threads(3);
        let (mut histories, mut units) = (Histories::default(), [0; 8]);
        for reader in &clocks[..2] {
            histories.record(&mut units, once(0..8), access(reader), false, reader).unwrap();
        }
        assert_eq!(units, [units[0]; 8]);
        let mut gate = Gate::default();
        gate.add(&mut clocks[0]);
        let released = gate.open();
        Acquirer::default().acquire(&mut clocks[2], &released);
        let missing = SharedAccess { agent: 1, time: 2, by: By::Thread };
        let conflict = histories.record(&mut units, once(0..8), access(&clocks[2]), true, &clocks[2]);
        assert_eq!(conflict, Err((Conflict::Unordered { earlier: missing, wrote: false }, 0..8)));
        clocks[2].learn(1, 2);
        histories.record(&mut units, once(0..8), access(&clocks[2]), true, &clocks[2]).unwrap();
        let write = access(&clocks[2]);
        let conflict = histories.record(&mut units, once(3..4), access(&clocks[1]), false, &clocks[1]);
        assert_eq!(conflict, Err((Conflict::Unordered { earlier: write, wrote: true }, 3..4)));
    }

    #[test]
    fn swizzles_permute_the_chunks_of_a_row() {
        assert_eq!(Swizzle::B128.place(0x80), 0x90);
        assert_eq!(Swizzle::B128.place(0x3F0), 0x380);
        assert_eq!(Swizzle::B64.place(0x80), 0x90);
        assert_eq!(Swizzle::B32.place(0x180), 0x190);
        assert_eq!(Swizzle::None.place(0x3F0), 0x3F0);
        for swizzle in [Swizzle::B32, Swizzle::B64, Swizzle::B128] {
            let mut places: Vec<_> = (0..1024).map(|address| swizzle.place(address)).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..1024), "{swizzle:?}");
        }
    }
}
