//! Shared memory as the place where a row waits between two passes over it.
use core::marker::PhantomData;

use crate::elem::Elem;
use crate::quad::Quad;
use crate::shared::{Shared, SharedMemory};
use crate::{block, thread};

/// Quads that wait in shared memory for a second pass over their row: a slot for each tile and thread of the block, read
/// by the thread that wrote it, so that no barrier is needed. A warp's slots of 8 bytes lie side by side.
#[derive(Clone, Copy)]
pub struct Staged<T> {
    slots: Shared<u64>,
    thread: u32,
    threads: u32,
    element: PhantomData<T>,
}

impl<T: Elem> Staged<T> {
    /// Slots of 8 bytes that a quad takes.
    const PLANES: u32 = size_of::<T>() as u32 / 2;

    /// Room for `tiles` tiles of every thread of the block.
    #[inline(always)]
    pub fn take(memory: &mut SharedMemory, tiles: u32) -> Self {
        let [x, y, _] = thread::block_dim();
        let threads = x * y;
        let slots = memory.take(tiles * threads * Self::PLANES);
        Self { slots, thread: block::linear_index(), threads, element: PhantomData }
    }

    /// Bytes of shared memory that `tiles` tiles of a block of `threads` take.
    pub const fn bytes(tiles: u32, threads: u32) -> u32 {
        tiles * threads * Self::PLANES * 8
    }

    #[inline(always)]
    fn slot(&self, tile: u32, plane: u32) -> u32 {
        (tile * Self::PLANES + plane) * self.threads + self.thread
    }

    /// Keeps the thread's quad of `tile`.
    #[inline(always)]
    pub fn put(&self, tile: u32, quad: Quad<T>) {
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let [a, b, c, d] = quad.words;
        // SAFETY: `take` made room for the tile; the slot is this thread's alone.
        unsafe {
            self.slots.set(self.slot(tile, 0), join(a, b));
            if Self::PLANES == 2 {
                self.slots.set(self.slot(tile, 1), join(c, d));
            }
        }
    }

    /// The thread's quad of `tile`, as last put.
    #[inline(always)]
    pub fn get(&self, tile: u32) -> Quad<T> {
        let split = |word: u64| [word as u32, (word >> 32) as u32];
        // SAFETY: as in `put`, by this thread.
        let [[a, b], [c, d]] = unsafe {
            let low = split(self.slots.get(self.slot(tile, 0)));
            [low, if Self::PLANES == 2 { split(self.slots.get(self.slot(tile, 1))) } else { [0; 2] }]
        };
        Quad { words: [a, b, c, d], element: PhantomData }
    }
}
