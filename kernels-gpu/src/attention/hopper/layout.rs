//! Layout of a block's shared memory, including its mbarriers.
//!
//! A tile in shared memory consists of column slices. A slice has `PART` (64) columns of 16 bits, so a row of
//! a slice has 128 bytes. The 128-byte swizzle of TMA requires rows of at most 128 bytes.
use core::marker::PhantomData;

use cuda_std::hopper::barrier::{Barrier, publish};
use cuda_std::hopper::shared_base;
use cuda_std::{block, thread, warp};

use super::params::PART;
use super::shape::Shape;

/// Bytes per row of a column slice.
pub(crate) const PART_ROW: u32 = PART * 2;
/// Alignment of the tiles in bytes. The pattern of the 128-byte swizzle repeats every 1024 bytes, so each
/// tile must start at a multiple of 1024.
const ALIGN: u32 = 1024;

/// The address of a block's shared memory, from which the methods compute the addresses of its regions. The
/// regions have this order: query tile, key tiles, value tiles, result (staged for TMA), masks, mbarriers.
#[derive(Clone, Copy)]
pub(crate) struct Layout<K> {
    base: u32,
    kernel: PhantomData<K>,
}

/// A buffer in shared memory, with its two mbarriers.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    /// Address of the buffer in shared memory.
    pub data: u32,
    /// This mbarrier completes a phase when the producer has filled the buffer.
    pub full: Barrier,
    /// This mbarrier completes a phase when the consumers have released the buffer.
    pub empty: Barrier,
}

/// A position in the pipeline of tiles of keys, values or mask values. It consists of the index of a buffer,
/// and the parity of the mbarrier phase that completes when the buffer contains the tile.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    /// Index of the buffer.
    pub stage: u32,
    /// Parity (0 or 1) of the mbarrier phase that a consumer waits for. The parity changes each time the
    /// pipeline reuses the buffer.
    pub parity: u32,
}

impl Slot {
    /// The pipeline position of the first tile.
    pub const FIRST: Self = Self { stage: 0, parity: 0 };

    /// Returns the pipeline position of the next tile.
    #[inline(always)]
    pub fn next<K: Shape>(self) -> Self {
        let last = self.stage + 1 == K::STAGES;
        Self { stage: if last { 0 } else { self.stage + 1 }, parity: self.parity ^ u32::from(last) }
    }
}

impl<K: Shape> Layout<K> {
    /// Column slices per tile.
    pub const PARTS: u32 = K::DIM.div_ceil(PART);
    /// Bytes of a column slice (64 columns) of the query tile.
    pub const QUERY_PART: u32 = K::ROWS * PART_ROW;
    /// Bytes of a column slice (64 columns) of a key or value tile.
    pub const KEY_PART: u32 = K::KEYS * PART_ROW;
    /// Bytes of the query tile.
    pub const QUERY_BYTES: u32 = Self::QUERY_PART * Self::PARTS;
    /// Bytes of a key or value tile.
    pub const KEY_BYTES: u32 = Self::KEY_PART * Self::PARTS;
    /// Bytes of the additive mask of one key tile, in f32.
    const MASK_BYTES: u32 = if K::PADDED { K::KEYS * 4 } else { 0 };
    /// Offset of the region in which the block stages its result. TMA stores the result from this region to
    /// global memory.
    const RESULT: u32 = Self::QUERY_BYTES + 2 * K::STAGES * Self::KEY_BYTES;
    /// Offset of the masks.
    const MASKS: u32 = Self::RESULT + if K::STAGED { Self::QUERY_BYTES } else { 0 };
    /// Offset of the mbarriers.
    const BARRIERS: u32 = Self::MASKS + K::STAGES * Self::MASK_BYTES;
    /// Number of buffers that have mbarriers. There is one buffer for queries. Each pipeline stage has one
    /// buffer for keys and one buffer for values. In `PADDED` kernels, which support a mask, each stage also
    /// has one buffer for mask values.
    const BUFFERS: u32 = 1 + K::STAGES * if K::PADDED { 3 } else { 2 };

    /// Returns the layout in the shared memory of this launch.
    #[inline(always)]
    pub fn of_launch() -> Self {
        Self { base: shared_base(ALIGN), kernel: PhantomData }
    }

    /// Returns buffer number `number`. Its data starts `data` bytes after the start of the block's layout in
    /// shared memory.
    #[inline(always)]
    fn buffer(self, data: u32, number: u32) -> Buffer {
        let first = self.base + Self::BARRIERS + 2 * number * Barrier::BYTES;
        Buffer {
            data: self.base + data,
            full: Barrier::at(first),
            empty: Barrier::at(first + Barrier::BYTES),
        }
    }

    /// Returns the buffer of the queries.
    #[inline(always)]
    pub fn queries(self) -> Buffer {
        self.buffer(0, 0)
    }

    /// Returns the address of the region in which the block stages its result before TMA stores it. The
    /// region has the layout of the query tile: slices of 64 columns, one after the other.
    #[inline(always)]
    pub fn result(self) -> u32 {
        self.base + Self::RESULT
    }

    /// Returns the buffer of a key tile.
    #[inline(always)]
    pub fn keys(self, slot: Slot) -> Buffer {
        self.buffer(Self::QUERY_BYTES + slot.stage * Self::KEY_BYTES, 1 + slot.stage)
    }

    /// Returns the buffer of a value tile.
    #[inline(always)]
    pub fn values(self, slot: Slot) -> Buffer {
        let stage = K::STAGES + slot.stage;
        self.buffer(Self::QUERY_BYTES + stage * Self::KEY_BYTES, 1 + stage)
    }

    /// Returns the buffer of the mask of a key tile.
    #[inline(always)]
    pub fn masks(self, slot: Slot) -> Buffer {
        self.buffer(Self::MASKS + slot.stage * Self::MASK_BYTES, 1 + 2 * K::STAGES + slot.stage)
    }

    /// Initializes the mbarriers and synchronizes the block. All threads of the block call this function.
    ///
    /// # Safety
    /// The launch has enough shared memory for the layout.
    #[inline(always)]
    pub unsafe fn make_barriers(self) {
        if thread::index()[0] == 0 {
            for number in 0..Self::BUFFERS {
                let buffer = self.buffer(0, number);
                // Number of lanes per warp that arrive on the mbarriers of this buffer. For a buffer of
                // queries, keys or values, one producer thread and one lane of each consumer warp arrive. For
                // a buffer of mask values, all 32 lanes of one producer warp arrive, and all 32 lanes of each
                // consumer warp.
                let speakers = if number > 2 * K::STAGES { warp::SIZE } else { 1 };
                // SAFETY: `init` writes the mbarriers. The caller guarantees that they are in the shared
                // memory of the launch. Only thread 0 initializes them.
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
