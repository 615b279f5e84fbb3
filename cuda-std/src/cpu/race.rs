//! Race detection in shared memory: finds pairs of accesses that no barrier orders.
//!
//! Two accesses to the same bytes by different threads need a block barrier between them if at least one
//! access is a write. For two threads of one warp, a warp barrier is enough. Without such a barrier, the
//! accesses are a race. As on a GPU, shuffles, votes and matrix multiplications do not order memory accesses.
//! Whether a race is found does not depend on the order in which the threads run, or on the accessed values.
use core::cell::{Cell, RefCell};
use core::panic::Location;

use super::clock::{BEFORE_BLOCK_BARRIER, BEFORE_NO_BARRIER, BEFORE_WARP_BARRIER};
use super::{Block, FaultKind, current};

/// The detection tracks shared memory in units of this many bytes. Larger units would report false races,
/// because two threads may access the two 16-bit halves of a 32-bit word.
const UNIT: usize = 2;

/// Summary of some accesses to one unit (2 bytes of shared memory): all reads, or all writes, between two
/// consecutive block barriers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark {
    /// Number of block barriers that had completed at the time of the accesses. The number is at least 1
    /// while a block runs. The value 0 means that there was no access. The counter wraps after 2^32 barriers,
    /// which would take hours.
    barriers: u32,
    /// Number of warp barriers that the warp of `thread` had executed before the last access.
    rendezvous: u32,
    /// `thread` is the thread that made the last access. If `lanes` or `warps` is true, `other` is another
    /// thread that made an access. `other` belongs to another warp if `warps` is true, otherwise to the same
    /// warp as `thread`.
    thread: u16,
    other: u16,
    /// `lanes` is true if other lanes of the thread's warp made an access since the warp's last barrier.
    /// `warps` is true if other warps made an access.
    lanes: bool,
    warps: bool,
}

impl Mark {
    const NONE: Self = Self { barriers: 0, rendezvous: 0, thread: 0, other: 0, lanes: false, warps: false };

    /// Returns a thread that made one of the accesses in this summary, if no barrier separates its access
    /// from the access `now`. Returns `None` if a barrier separates all of them.
    fn race(&self, now: &Self) -> Option<u16> {
        if self.barriers != now.barriers {
            return None;
        }
        let alone = self.thread == now.thread && !self.lanes;
        let of_warp = self.thread / 32 == now.thread / 32;
        let ordered = of_warp && !self.warps && (alone || self.rendezvous != now.rendezvous);
        let before = of_warp && (self.thread == now.thread || self.rendezvous != now.rendezvous);
        (!ordered).then_some(if before { self.other } else { self.thread })
    }

    /// Returns this summary with the access `now` added.
    fn with(&self, now: Self) -> Self {
        if self.barriers != now.barriers || *self == now {
            return now;
        }
        let of_warp = self.thread / 32 == now.thread / 32;
        let lanes = of_warp && self.rendezvous == now.rendezvous && (self.lanes || self.thread != now.thread);
        let keeps = self.thread == now.thread || of_warp && self.warps;
        let other = if keeps { self.other } else { self.thread };
        Self { other, lanes, warps: self.warps || !of_warp, ..now }
    }
}

/// The earlier accesses to a block's shared memory, for the detection of data races.
pub(super) struct Races {
    /// For each unit (2 bytes) of shared memory, the summary of its reads and the summary of its writes.
    marks: RefCell<Vec<[Mark; 2]>>,
    barriers: Cell<u32>,
    /// The value of `barriers` at the start of the block.
    first: Cell<u32>,
    /// Whether the block has accessed its shared memory.
    used: Cell<bool>,
    rendezvous: Vec<Cell<u32>>,
}

impl Races {
    pub fn new(bytes: u32, warps: usize) -> Self {
        let units = (bytes as usize).div_ceil(UNIT);
        Self {
            marks: RefCell::new(vec![[Mark::NONE; 2]; units]),
            barriers: Cell::new(0),
            first: Cell::new(0),
            used: Cell::new(false),
            rendezvous: vec![Cell::new(0); warps],
        }
    }

    /// Begins a new block. The accesses of the previous block cause no race.
    pub fn begin(&self) {
        self.barrier();
        self.first.set(self.barriers.get());
        self.used.set(false);
    }

    /// Counts a block barrier.
    pub fn barrier(&self) {
        self.barriers.set(self.barriers.get().wrapping_add(1));
    }

    /// Counts a warp barrier of the warp `warp`. A barrier whose mask contains only some lanes is counted as
    /// if it contained all lanes. A race with a lane outside the mask may therefore remain undetected.
    pub fn rendezvous(&self, warp: usize) {
        self.rendezvous[warp].set(self.rendezvous[warp].get().wrapping_add(1));
    }
}

/// Records an access of the running thread to shared memory at `offset`. Raises a fault if this access and an
/// earlier access are a data race.
#[inline]
#[track_caller]
pub(crate) fn note(offset: usize, bytes: usize, writes: bool) {
    let at = Location::caller();
    // SAFETY: the block is used only in this function.
    let block = unsafe { current() };
    block.thread().site.set(Some(at));
    block.note(offset, bytes, writes);
}

/// An access to a unit of shared memory before the cluster of the block became active (before its first
/// Hopper operation).
pub(super) struct EarlierAccess {
    /// Index of the unit.
    pub unit: usize,
    /// The thread.
    pub thread: u16,
    pub writes: bool,
    /// The number of the thread's event that stands for this access. It says which kind of barrier followed
    /// the access: a block barrier, only a warp barrier, or none.
    pub event: u32,
}

impl Races {
    /// Calls `f` for the recorded accesses of the block: for each unit, at most two reads and two writes. The
    /// record is incomplete if several warps accessed the unit since the last block barrier. It then does not
    /// say whether the warp of the thread `other` has executed a warp barrier since its access. The function
    /// assumes that it has, so a race between two lanes of this warp may remain undetected.
    pub fn each_access(&self, mut f: impl FnMut(EarlierAccess)) {
        if !self.used.get() {
            return;
        }
        for (unit, marks) in self.marks.borrow().iter().enumerate() {
            for (mark, writes) in marks.iter().zip([false, true]) {
                if mark.barriers < self.first.get() {
                    continue;
                }
                let after_warp = self.rendezvous[usize::from(mark.thread) / 32].get() != mark.rendezvous;
                let event = |after_warp| match (mark.barriers == self.barriers.get(), after_warp) {
                    (false, _) => BEFORE_BLOCK_BARRIER,
                    (true, true) => BEFORE_WARP_BARRIER,
                    (true, false) => BEFORE_NO_BARRIER,
                };
                if mark.lanes || mark.warps {
                    let event = event(after_warp || mark.warps);
                    f(EarlierAccess { unit, thread: mark.other, writes, event });
                }
                f(EarlierAccess { unit, thread: mark.thread, writes, event: event(after_warp) });
            }
        }
    }
}

impl Block {
    fn note(&self, offset: usize, bytes: usize, writes: bool) {
        if self.cluster.is_active() {
            return self.note_active(offset, bytes, writes);
        }
        let (thread, races) = (self.linear_index(), &self.races);
        races.used.set(true);
        let (barriers, rendezvous) = (races.barriers.get(), races.rendezvous[thread / 32].get());
        let now = Mark { barriers, rendezvous, thread: thread as u16, ..Mark::NONE };
        let mut race = None;
        for [read, write] in &mut races.marks.borrow_mut()[offset / UNIT..(offset + bytes).div_ceil(UNIT)] {
            let after_write = write.race(&now).map(|other| (other, true));
            let after_read = if writes { read.race(&now).map(|other| (other, false)) } else { None };
            race = race.or(after_write).or(after_read);
            let mark = if writes { write } else { read };
            *mark = mark.with(now);
        }
        if let Some((other, wrote)) = race {
            let other = self.slots[usize::from(other)].index;
            if !self.unwinds() {
                self.raise(FaultKind::Race { offset, bytes, writes, other, wrote });
            }
        }
    }
}
