//! The history of each unit (2 bytes) of shared memory: the last write to it, and the reads since this write.
//! A new access by a thread races with an earlier access in the history if the thread's vector clock does not
//! contain the earlier one.
//!
//! Adjacent units usually have the same history. Each history is therefore stored only once, and a unit
//! refers to it by number.
use core::ops::Range;

use rustc_hash::FxHashMap;

use super::clock::Clock;

/// Bytes per unit of shared memory. Each unit has a history of its accesses. The size is the same as in
/// [`race`](super::race).
pub(super) const UNIT: usize = 2;

/// The swizzle of a tile, which permutes the 16-byte chunks within its rows. TMA and the descriptors of
/// `wgmma` have the same swizzle modes.
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

    /// Returns the address at which the hardware stores a byte of a tile. `address` is the address of this
    /// byte without the swizzle.
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
    /// The initialization of an mbarrier by a thread.
    Initialization,
    /// A `wgmma` that reads an operand with this layout.
    Wgmma(Swizzle),
    /// An asynchronous copy whose tile has this layout. The value is `None` for TMA stores and for copies
    /// without a tile.
    Copy(Option<Swizzle>),
}

impl By {
    /// Whether a thread itself makes the access, through the generic proxy.
    pub fn is_generic(self) -> bool {
        matches!(self, Self::Thread | Self::Initialization)
    }
}

/// An access to shared memory, as a numbered event of an agent (a source of accesses). For an access by a
/// thread, the agent is the thread, and `time` is the number of the event. For an asynchronous access, the
/// agent is an mbarrier, the bulk groups of a thread, or the `wgmma` groups of a warpgroup. `time` is then
/// the number, from 1, of the phase or group whose end completes the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SharedAccess {
    pub agent: u32,
    pub time: u32,
    pub by: By,
}

/// Reads by up to 32 agents (sources of accesses) with neighbouring numbers, for example by the lanes of a
/// warp. With one entry per lane instead, the history of a word that a whole block reads would be 32 times as
/// large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Readers {
    /// The number of the group of agents: all readers are among the agents with the numbers `32 * group` to
    /// `32 * group + 31`.
    group: u32,
    /// A mask of the agents that read.
    agents: u32,
    time: u32,
    by: By,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct History {
    write: Option<SharedAccess>,
    /// The reads, sorted by `group` and `time`, so that equal histories have equal vectors.
    reads: Vec<Readers>,
}

impl History {
    fn add_read(&mut self, SharedAccess { agent, time, by }: SharedAccess) {
        let (group, agents) = (agent / 32, 1 << (agent % 32));
        let at = self.reads.partition_point(|readers| (readers.group, readers.time) < (group, time));
        let same = |readers: &&mut Readers| (readers.group, readers.time, readers.by) == (group, time, by);
        match self.reads[at..].iter_mut().take_while(|readers| readers.group == group).find(same) {
            Some(readers) => readers.agents |= agents,
            None => self.reads.insert(at, Readers { group, agents, time, by }),
        }
    }
}

/// Why an access must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// No barrier or other synchronization orders the new access after the access `earlier`. `wrote` says
    /// whether `earlier` is a write.
    Unordered { earlier: SharedAccess, wrote: bool },
    /// The access uses the async proxy, and it reads or overwrites bytes that a thread wrote. No proxy fence
    /// separates the two accesses.
    Unfenced { earlier: SharedAccess },
    /// It overwrites an mbarrier.
    Mbarrier { earlier: SharedAccess },
    /// It reads a tile that was written with another swizzle.
    Swizzled { written: Swizzle },
}

/// All histories of a cluster. Number 0 is the empty history.
#[derive(Debug)]
pub(super) struct Histories {
    all: Vec<History>,
    numbers: FxHashMap<History, u32>,
    /// A cache of the results of `after`, the function that adds an access to a history. The key has all
    /// inputs of this function: the history, the access, whether it writes, and the agent and time of its
    /// thread. Agent and time determine the events that the thread knows.
    next: FxHashMap<(u32, SharedAccess, bool, [u32; 2]), u32>,
    /// The total number of entries of all histories, and a limit. If the number exceeds the limit, `collect`
    /// deletes the histories that no unit of shared memory refers to.
    size: usize,
    limit: usize,
}

/// Minimum of the limit for the total number of entries. Below the limit, histories are kept even if no unit
/// of shared memory refers to them.
const MIN_LIMIT: usize = 1 << 16;
/// Maximum number of entries of the cache `next`. An entry is useful only until the clock of its thread
/// advances, so a larger cache would have no advantage.
const MAX_NEXT: usize = 1 << 14;

impl Default for Histories {
    fn default() -> Self {
        let none = History::default();
        Self {
            all: vec![none.clone()],
            numbers: [(none, 0)].into_iter().collect(),
            next: FxHashMap::default(),
            size: 0,
            limit: MIN_LIMIT,
        }
    }
}

impl Histories {
    /// Deletes the histories that no unit of shared memory refers to, if the histories have many entries.
    /// Without this function, a kernel with many phases would need more and more memory.
    #[inline]
    pub fn collect(&mut self, units: &mut [Vec<u32>]) {
        if self.size > self.limit {
            self.collect_now(units);
        }
    }

    #[cold]
    #[inline(never)]
    fn collect_now(&mut self, units: &mut [Vec<u32>]) {
        let old = std::mem::take(self);
        let mut renamed = vec![None; old.all.len()];
        for unit in units.iter_mut().flatten() {
            let at = *unit as usize;
            *unit = *renamed[at].get_or_insert_with(|| self.number(old.all[at].clone()));
        }
        self.limit = MIN_LIMIT.max(2 * self.size);
    }

    /// Adds an access to the histories of some ranges of `units` (2 bytes of shared memory each). `clock` is
    /// the vector clock of the thread that makes or starts the access. If the access conflicts with an
    /// earlier one, returns the conflict and the range.
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
            // Remove the reads that this access replaces. A read by a thread replaces all reads that happen
            // before it. A later write that is ordered after this read is also ordered after them. An
            // asynchronous read, for example by `wgmma`, replaces only reads by the same agent. An arrival
            // can order such a read before a later write without ordering the reads that the threads know.
            let kept = |readers: &Readers| {
                let mask = if access.by.is_generic() {
                    clock.unknown(readers.group, readers.time)
                } else if readers.group == access.agent / 32 && readers.time <= access.time {
                    !(1 << (access.agent % 32))
                } else {
                    u32::MAX
                };
                let agents = readers.agents & mask;
                (agents != 0).then_some(Readers { agents, ..*readers })
            };
            let reads = history.reads.iter().filter_map(kept).collect();
            let mut history = History { write: history.write, reads };
            history.add_read(access);
            history
        };
        let after = self.number(history);
        if self.next.len() >= MAX_NEXT {
            self.next.clear();
        }
        self.next.insert(key, after);
        Ok(after)
    }

    /// Returns the history `before`, extended by an access that is known not to race.
    pub fn extended(&mut self, before: u32, access: SharedAccess, writes: bool) -> u32 {
        let mut history = self.all[before as usize].clone();
        if writes {
            history.write = Some(access);
        } else {
            history.add_read(access);
        }
        self.number(history)
    }

    fn number(&mut self, history: History) -> u32 {
        if let Some(&number) = self.numbers.get(&history) {
            return number;
        }
        self.size += 1 + history.reads.len();
        let number = self.all.len() as u32;
        self.all.push(history.clone());
        self.numbers.insert(history, number);
        number
    }
}

fn conflict(history: &History, access: SharedAccess, writes: bool, clock: &Clock) -> Option<Conflict> {
    if let Some(write) = history.write {
        if writes && write.by == By::Initialization && access.by != By::Initialization {
            return Some(Conflict::Mbarrier { earlier: write });
        }
        if !clock.knows(write.agent, write.time) {
            return Some(Conflict::Unordered { earlier: write, wrote: true });
        }
        // A proxy fence is needed only between a write by a thread and an asynchronous access. Between a read
        // by a thread and a later asynchronous write, no fence is needed. Pipelines rely on this rule: TMA
        // overwrites a buffer after the readers have arrived at an mbarrier.
        let proxies = !access.by.is_generic() && write.by.is_generic();
        if proxies && !clock.knows_fenced(write.agent, write.time) {
            return Some(Conflict::Unfenced { earlier: write });
        }
        if let (By::Wgmma(read), By::Copy(Some(written))) = (access.by, write.by)
            && read != written
        {
            return Some(Conflict::Swizzled { written });
        }
    }
    if !writes {
        return None;
    }
    history.reads.iter().find_map(|readers| {
        let agents = readers.agents & clock.unknown(readers.group, readers.time);
        let agent = 32 * readers.group + agents.trailing_zeros();
        let earlier = SharedAccess { agent, time: readers.time, by: readers.by };
        (agents != 0).then_some(Conflict::Unordered { earlier, wrote: false })
    })
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
        let mut clocks = Clock::of_threads(1, 3);
        let (mut histories, mut units) = (Histories::default(), [0; 8]);
        for reader in &clocks[..2] {
            histories.record(&mut units, once(0..8), access(reader), false, reader).unwrap();
        }
        assert_eq!(units, [units[0]; 8]);
        let mut gate = Gate::default();
        gate.add(&mut clocks[0]);
        let released = gate.open();
        Acquirer::default().acquire(&mut clocks[2], &released);
        let missing = SharedAccess { agent: 1, time: clocks[1].now, by: By::Thread };
        let conflict = histories.record(&mut units, once(0..8), access(&clocks[2]), true, &clocks[2]);
        assert_eq!(conflict, Err((Conflict::Unordered { earlier: missing, wrote: false }, 0..8)));
        Acquirer::default().learn(&mut clocks[2], 1, missing.time);
        histories.record(&mut units, once(0..8), access(&clocks[2]), true, &clocks[2]).unwrap();
        let write = access(&clocks[2]);
        let conflict = histories.record(&mut units, once(3..4), access(&clocks[1]), false, &clocks[1]);
        assert_eq!(conflict, Err((Conflict::Unordered { earlier: write, wrote: true }, 3..4)));
    }

    /// Synchronizes the block.
    fn barrier(clocks: &mut [Clock]) {
        let mut gate = Gate::default();
        clocks.iter_mut().for_each(|clock| gate.add(clock));
        let (released, mut acquirer) = (gate.open(), Acquirer::default());
        clocks.iter_mut().for_each(|clock| acquirer.acquire(clock, &released));
    }

    #[test]
    fn histories_stay_small() {
        let mut clocks = Clock::of_threads(1, 1024);
        let (mut histories, mut units) = (Histories::default(), vec![vec![0; 64]]);
        let mut largest = 0;
        for round in 0..20 {
            let writer = &clocks[round];
            histories.record(&mut units[0], once(0..64), access(writer), true, writer).unwrap();
            barrier(&mut clocks);
            for reader in &clocks {
                histories.collect(&mut units);
                histories.record(&mut units[0], once(0..64), access(reader), false, reader).unwrap();
            }
            largest = largest.max(histories.size);
            barrier(&mut clocks);
        }
        // In each round, 1024 threads read one after the other, and each read creates a history. A history
        // has one entry per warp that has read, 1 to 32. Together, the histories of 20 rounds have 358,000
        // entries. With one entry per lane, the histories of a single round would have 525,000.
        assert!(largest <= MIN_LIMIT + 1024, "{largest}");
        // The collection of unused histories has not deleted a history that is still needed. The last reads
        // still race with a write by a thread that is not synchronized with the readers.
        let reader = access(&clocks[7]);
        histories.record(&mut units[0], once(5..6), reader, false, &clocks[7]).unwrap();
        histories.limit = 0;
        histories.collect(&mut units);
        assert!(histories.all.len() <= 3, "{}", histories.all.len());
        let conflict = histories.record(&mut units[0], once(0..64), access(&clocks[8]), true, &clocks[8]);
        assert_eq!(conflict, Err((Conflict::Unordered { earlier: reader, wrote: false }, 0..64)));
    }

    #[test]
    fn equal_sets_of_readers_have_one_history() {
        let clocks = Clock::of_threads(1, 100);
        let (mut histories, mut units) = (Histories::default(), [0; 2]);
        for at in 0..100 {
            for (unit, at) in [(0, at), (1, 99 - at)] {
                let range = once(unit..unit + 1);
                histories.record(&mut units, range, access(&clocks[at]), false, &clocks[at]).unwrap();
            }
        }
        assert_eq!(units[0], units[1]);
        assert_eq!(histories.all[units[0] as usize].reads.len(), 4);
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
