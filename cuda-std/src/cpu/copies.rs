//! Copies to shared memory that threads began: what they bring is there when the thread has waited, and not before.
use core::cell::{Cell, RefCell};

use super::{Block, note, with};

/// Bytes of a copy.
const BYTES: usize = 16;

/// A copy on its way: where to, and what.
type Pending = (usize, [u8; BYTES]);

/// Those of a block, for each thread in the order in which they began.
pub(super) struct Copies {
    of_thread: Vec<RefCell<Vec<Pending>>>,
    pending: Cell<usize>,
}

impl Copies {
    pub fn new(threads: usize) -> Self {
        Self { of_thread: vec![RefCell::default(); threads], pending: Cell::new(0) }
    }

    /// Forgets what the block before did not wait for.
    pub fn clear(&self) {
        if self.pending.replace(0) > 0 {
            self.of_thread.iter().for_each(|copies| copies.borrow_mut().clear());
        }
    }
}

/// Begins a copy of the running thread to `offset`, inside the launch's shared memory, which is undefined until then.
pub(crate) fn begin(offset: usize, bytes: [u8; BYTES]) {
    with(|block| {
        block.write(offset, [0xFF; BYTES]);
        block.copies.of_thread[block.linear_index()].borrow_mut().push((offset, bytes));
        block.copies.pending.update(|pending| pending + 1);
    });
}

/// Ends those of the running thread: each is a write that may have come at any time since it began.
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
        // SAFETY: inside the launch's shared memory, as `begin`'s caller checked; one thread runs at a time.
        unsafe { self.shared_base().add(offset).cast::<[u8; BYTES]>().write(bytes) };
    }
}
