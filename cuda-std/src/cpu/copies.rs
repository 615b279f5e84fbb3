//! Asynchronous copies to shared memory on the CPU executor. The executor writes the data to shared memory
//! only when the thread that started the copy waits for it. A kernel that omits this wait therefore reads
//! wrong data.
use core::cell::{Cell, RefCell};

use super::{Block, note, with};

/// Number of bytes of one copy.
const BYTES: usize = 16;

/// A pending copy: its offset in shared memory and its data.
type Pending = (usize, [u8; BYTES]);

/// What a thread has started and not waited for, in order.
#[derive(Clone, Copy)]
enum Item {
    Copy(Pending),
    /// The end of a group of copies.
    Commit,
}

/// The pending copies of a block. For each thread, there is a list of the copies that it started. The list
/// also contains the points at which the thread closed a group of copies (`cp.async.commit_group`).
pub(super) struct Copies {
    of_thread: Vec<RefCell<Vec<Item>>>,
    pending: Cell<usize>,
}

impl Copies {
    pub fn new(threads: usize) -> Self {
        Self { of_thread: vec![RefCell::default(); threads], pending: Cell::new(0) }
    }

    /// Discards the pending copies of the previous block.
    pub fn clear(&self) {
        if self.pending.replace(0) > 0 {
            self.of_thread.iter().for_each(|copies| copies.borrow_mut().clear());
        }
    }
}

/// Starts a copy of `bytes` to shared memory at `offset`, for the running thread. The destination must lie
/// inside the launch's shared memory. Until the thread waits for the copy, the destination contains 0xFF
/// bytes, which stand for undefined data.
pub(crate) fn begin(offset: usize, bytes: [u8; BYTES]) {
    with(|block| {
        block.write(offset, [0xFF; BYTES]);
        block.add(Item::Copy((offset, bytes)));
    });
}

/// Ends a group of copies of the running thread.
pub(crate) fn commit() {
    with(|block| block.add(Item::Commit));
}

/// Completes the pending copies of the running thread.
pub(crate) fn wait() {
    complete(with(|block| block.own_copies().take()));
}

/// Completes the pending copies of the running thread. The copies of its last `pending` groups
/// (`cp.async.commit_group`) stay pending. Copies that do not belong to a closed group yet also stay pending.
pub(crate) fn wait_for_groups(pending: usize) {
    complete(with(|block| {
        let mut items = block.own_copies().borrow_mut();
        let commits = items.iter().enumerate().filter(|(_, item)| matches!(item, Item::Commit));
        let end = commits.map(|(at, _)| at + 1).rev().nth(pending);
        items.drain(..end.unwrap_or(0)).collect()
    }));
}

/// Completes copies. For each copy, the race detection records two writes: one when the copy starts, and one
/// when it completes.
fn complete(items: Vec<Item>) {
    for item in &items {
        if let &Item::Copy((offset, bytes)) = item {
            note(offset, BYTES, true);
            with(|block| block.write(offset, bytes));
        }
    }
    with(|block| block.copies.pending.update(|pending| pending - items.len()));
}

impl Block {
    fn own_copies(&self) -> &RefCell<Vec<Item>> {
        &self.copies.of_thread[self.linear_index()]
    }

    fn add(&self, item: Item) {
        self.own_copies().borrow_mut().push(item);
        self.copies.pending.update(|pending| pending + 1);
    }

    fn write(&self, offset: usize, bytes: [u8; BYTES]) {
        // SAFETY: the write covers the destination of a copy. The caller of `begin` checked that this
        // destination lies inside the launch's shared memory. Only one thread of the block runs at a time.
        unsafe { self.shared_base().add(offset).cast::<[u8; BYTES]>().write(bytes) };
    }
}
