//! Shared memory of a block, and the barriers in it.
use core::marker::PhantomData;

use cuda_std::hopper::barrier::{Barrier, publish};
use cuda_std::hopper::shared_base;
use cuda_std::{block, thread, warp};

use super::params::PART;
use super::shape::Shape;

/// Bytes of a row of a part.
pub(crate) const PART_ROW: u32 = PART * 2;
/// What the swizzle repeats after.
const ALIGN: u32 = 1024;

/// The queries of a tile, then tiles of keys, tiles of values, the result, masks of tiles and barriers.
#[derive(Clone, Copy)]
pub(crate) struct Layout<K> {
    base: u32,
    kernel: PhantomData<K>,
}

/// A buffer, with the barriers that say when it was filled by the producer and emptied by the consumers.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    pub data: u32,
    pub full: Barrier,
    pub empty: Barrier,
}

/// A tile's place among the stages, and the parity of its turn there.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub stage: u32,
    pub parity: u32,
}

impl Slot {
    /// Where the first tile goes.
    pub const FIRST: Self = Self { stage: 0, parity: 0 };

    /// Where the next tile goes.
    #[inline(always)]
    pub fn next<K: Shape>(self) -> Self {
        let last = self.stage + 1 == K::STAGES;
        Self { stage: if last { 0 } else { self.stage + 1 }, parity: self.parity ^ u32::from(last) }
    }
}

impl<K: Shape> Layout<K> {
    /// Parts of a tile.
    pub const PARTS: u32 = K::DIM.div_ceil(PART);
    /// Bytes of a part of the queries.
    pub const QUERY_PART: u32 = K::ROWS * PART_ROW;
    /// Bytes of a part of a tile of keys or values.
    pub const KEY_PART: u32 = K::KEYS * PART_ROW;
    /// Bytes of the queries.
    pub const QUERY_BYTES: u32 = Self::QUERY_PART * Self::PARTS;
    /// Bytes of a tile of keys or values.
    pub const KEY_BYTES: u32 = Self::KEY_PART * Self::PARTS;
    /// Bytes of what is added to the scores of a tile of keys, in f32.
    const MASK_BYTES: u32 = if K::PADDED { K::KEYS * 4 } else { 0 };
    const RESULT: u32 = Self::QUERY_BYTES + 2 * K::STAGES * Self::KEY_BYTES;
    const MASKS: u32 = Self::RESULT + if K::STAGED { Self::QUERY_BYTES } else { 0 };
    const BARRIERS: u32 = Self::MASKS + K::STAGES * Self::MASK_BYTES;
    /// Buffers in all.
    const BUFFERS: u32 = 1 + K::STAGES * if K::PADDED { 3 } else { 2 };

    /// That of the launch.
    #[inline(always)]
    pub fn of_launch() -> Self {
        Self { base: shared_base(ALIGN), kernel: PhantomData }
    }

    #[inline(always)]
    fn buffer(self, data: u32, number: u32) -> Buffer {
        let first = self.base + Self::BARRIERS + 2 * number * Barrier::BYTES;
        Buffer {
            data: self.base + data,
            full: Barrier::at(first),
            empty: Barrier::at(first + Barrier::BYTES),
        }
    }

    /// That of the queries.
    #[inline(always)]
    pub fn queries(self) -> Buffer {
        self.buffer(0, 0)
    }

    /// Where the result lies before it is stored, in parts as large as those of the queries.
    #[inline(always)]
    pub fn result(self) -> u32 {
        self.base + Self::RESULT
    }

    /// That of a tile of keys.
    #[inline(always)]
    pub fn keys(self, slot: Slot) -> Buffer {
        self.buffer(Self::QUERY_BYTES + slot.stage * Self::KEY_BYTES, 1 + slot.stage)
    }

    /// That of a tile of values.
    #[inline(always)]
    pub fn values(self, slot: Slot) -> Buffer {
        let stage = K::STAGES + slot.stage;
        self.buffer(Self::QUERY_BYTES + stage * Self::KEY_BYTES, 1 + stage)
    }

    /// That of the mask of a tile of keys.
    #[inline(always)]
    pub fn masks(self, slot: Slot) -> Buffer {
        self.buffer(Self::MASKS + slot.stage * Self::MASK_BYTES, 1 + 2 * K::STAGES + slot.stage)
    }

    /// Makes the barriers; the whole block is here.
    ///
    /// # Safety
    /// The launch's shared memory holds the layout.
    #[inline(always)]
    pub unsafe fn make_barriers(self) {
        if thread::index()[0] == 0 {
            for number in 0..Self::BUFFERS {
                let buffer = self.buffer(0, number);
                // Tiles are brought by one thread, and each warp of the consumers says when it is done; masks
                // are brought and read by the lanes of warps, of which each says so.
                let speakers = if number > 2 * K::STAGES { warp::SIZE } else { 1 };
                // SAFETY: as the caller promises.
                unsafe {
                    buffer.full.init(speakers);
                    buffer.empty.init(4 * K::GROUPS * speakers);
                }
            }
            publish();
        }
        block::sync();
    }
}
