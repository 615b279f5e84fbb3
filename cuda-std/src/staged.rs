//! Shared memory as the place where a row waits between two passes over it.
use core::marker::PhantomData;

use crate::elem::Elem;
use crate::quad::Quad;
use crate::shared::{Shared, SharedMemory};
use crate::{block, thread, warp};

/// Quads that wait in shared memory for a second pass over their row: a slot for each tile and thread of the block, read
/// by the thread that wrote it, so that no barrier is needed. A warp's slots of 8 bytes lie side by side, its tiles at
/// constant distances.
#[derive(Clone, Copy)]
pub struct Staged<T> {
    slots: Shared<u64>,
    /// The thread's first slot.
    own: u32,
    element: PhantomData<T>,
}

impl<T: Elem> Staged<T> {
    /// Slots of 8 bytes that a quad takes.
    const PLANES: u32 = size_of::<T>() as u32 / 2;

    /// Room for `tiles` tiles of every warp of the block.
    #[inline(always)]
    pub fn take(memory: &mut SharedMemory, tiles: u32) -> Self {
        let [x, y, z] = thread::block_dim();
        let slots = memory.take(tiles * (x * y * z) * Self::PLANES);
        let before = block::linear_index() / warp::SIZE * warp::SIZE * tiles * Self::PLANES;
        Self { slots, own: before + warp::lane(), element: PhantomData }
    }

    #[inline(always)]
    fn slot(&self, tile: u32, plane: u32) -> u32 {
        self.own + (tile * Self::PLANES + plane) * warp::SIZE
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
