//! Which threads touched which part of shared memory since when: finds two accesses that nothing orders.
//!
//! Two accesses of different threads, of which one writes, are a race unless the block met at a barrier between them, or
//! both threads are of one warp and it met at a warp barrier. Shuffles, votes and products order no memory, on a GPU as
//! here. So a race is found whatever the order in which the threads run, and whatever the values.
use core::cell::{Cell, RefCell};

use super::{Block, FaultKind, with};

/// Bytes of a unit: the halves of a word may belong to two threads.
const UNIT: usize = 2;

/// The accesses of one kind to a unit, as far as they are between the same two barriers of the block.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark {
    /// Barriers of the block before them, counted from 1; 0: none was made. (2^32 of them take hours.)
    barriers: u32,
    /// Barriers of the warp before the last of them.
    rendezvous: u32,
    /// Who made the last of them, and another thread that made one.
    thread: u16,
    other: u16,
    /// Did other lanes of the thread's warp make one since its last barrier? Did other warps?
    lanes: bool,
    warps: bool,
}

impl Mark {
    const NONE: Self = Self { barriers: 0, rendezvous: 0, thread: 0, other: 0, lanes: false, warps: false };

    /// Who made one of these that nothing orders before `now`?
    fn race(&self, now: &Self) -> Option<u16> {
        if self.barriers != now.barriers {
            return None;
        }
        let alone = self.thread == now.thread && !self.lanes;
        let of_warp = self.thread / 32 == now.thread / 32;
        let ordered = of_warp && !self.warps && (alone || self.rendezvous != now.rendezvous);
        (!ordered).then_some(if self.thread == now.thread { self.other } else { self.thread })
    }

    /// With one more.
    fn with(&self, now: Self) -> Self {
        if self.barriers != now.barriers || *self == now {
            return now;
        }
        let of_warp = self.thread / 32 == now.thread / 32;
        let lanes = of_warp && self.rendezvous == now.rendezvous && (self.lanes || self.thread != now.thread);
        let other = if self.thread == now.thread { self.other } else { self.thread };
        Self { other, lanes, warps: self.warps || !of_warp, ..now }
    }
}

/// What is known of a block's shared memory.
pub(super) struct Races {
    /// For each unit, what read it and what wrote it.
    marks: RefCell<Vec<[Mark; 2]>>,
    barriers: Cell<u32>,
    rendezvous: Vec<Cell<u32>>,
}

impl Races {
    pub fn new(bytes: u32, warps: usize) -> Self {
        let units = (bytes as usize).div_ceil(UNIT);
        Self {
            marks: RefCell::new(vec![[Mark::NONE; 2]; units]),
            barriers: Cell::new(0),
            rendezvous: vec![Cell::new(0); warps],
        }
    }

    /// The block meets, or another one begins.
    pub fn barrier(&self) {
        self.barriers.set(self.barriers.get().wrapping_add(1));
    }

    /// A warp meets. (Some of its lanes, if the mask is not whole: then a race may go unnoticed.)
    pub fn rendezvous(&self, warp: usize) {
        self.rendezvous[warp].set(self.rendezvous[warp].get().wrapping_add(1));
    }
}

/// Takes note of an access of the running thread to shared memory, inside the launch's; faults if it is a race.
#[inline]
pub(crate) fn note(offset: usize, bytes: usize, writes: bool) {
    with(|block| block.note(offset, bytes, writes));
}

impl Block {
    fn note(&self, offset: usize, bytes: usize, writes: bool) {
        let (thread, races) = (self.linear_index(), &self.races);
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
            self.raise(FaultKind::Race { offset, bytes, writes, other, wrote });
        }
    }
}
