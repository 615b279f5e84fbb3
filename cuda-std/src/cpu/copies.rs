//! Asynchronous copies to shared memory on the CPU executor. The executor writes the data to shared memory
//! only when the thread that started the copy waits for it. A kernel that omits this wait therefore reads
//! wrong data.
use core::cell::{Cell, RefCell};

use super::{Block, note, with};

/// Number of bytes of one copy.
const BYTES: usize = 16;

/// A pending copy: its offset in shared memory and its data.
type Pending = (usize, [u8; BYTES]);

/// The pending copies of a block. Each thread has a list of the copies that it started, in the order of their
/// starts.
pub(super) struct Copies {
    of_thread: Vec<RefCell<Vec<Pending>>>,
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
/// inside the launch's shared memory. It contains 0xFF bytes, which stand for undefined data, until the
/// thread waits for the copy.
pub(crate) fn begin(offset: usize, bytes: [u8; BYTES]) {
    with(|block| {
        block.write(offset, [0xFF; BYTES]);
        block.copies.of_thread[block.linear_index()].borrow_mut().push((offset, bytes));
        block.copies.pending.update(|pending| pending + 1);
    });
}

/// Completes the pending copies of the running thread. For each copy, the race detection records two writes:
/// one when the copy starts, and one when it completes.
pub(crate) fn wait() {
    let copies = with(|block| block.copies.of_thread[block.linear_index()].take());
    for &(offset, bytes) in &copies {
        note(offset, BYTES, true);
        with(|block| block.write(offset, bytes));
    }
    with(|block| block.copies.pending.update(|pending| pending - copies.len()));
}

impl Block {
    fn write(&self, offset: usize, bytes: [u8; BYTES]) {
        // SAFETY: the caller of `begin` checked that the destination of the copy lies inside the launch's
        // shared memory. Only one thread of the block runs at a time.
        unsafe { self.shared_base().add(offset).cast::<[u8; BYTES]>().write(bytes) };
    }
}
