//! Layout of a block's shared memory, including its mbarriers.
use core::marker::PhantomData;

use cuda_std::hopper::barrier::{Barrier, publish};
use cuda_std::hopper::shared_base;
use cuda_std::{block, cluster, thread};

use super::params::STAGING_BYTES;
use super::shape::GemmKernel;

/// Alignment of the buffers in bytes. The pattern of the 128-byte swizzle of TMA repeats every 1024 bytes, so
/// each buffer must start at a multiple of 1024.
const ALIGN: u32 = 1024;
/// Bytes of a row of a buffer.
pub(crate) const ROW_BYTES: u32 = 128;

/// Addresses of the regions of a block's shared memory. The first region is the ring of buffers for tiles of
/// the operands. The others contain the results that warps stage for TMA, and the mbarriers.
#[derive(Clone, Copy)]
pub(crate) struct RingLayout<K> {
    base: u32,
    kernel: PhantomData<K>,
}

/// A buffer of the ring, with its two mbarriers.
#[derive(Clone, Copy)]
pub(crate) struct Stage {
    /// Address of the tile of `x`.
    pub x: u32,
    /// Address of the tile of `w`.
    pub w: u32,
    /// This mbarrier completes a phase when TMA has filled the buffer.
    pub full: Barrier,
    /// This mbarrier completes a phase when all consumer warpgroups that read the buffer have released it. If
    /// both blocks of a cluster write to the buffer, the consumer warpgroups of both blocks must release it.
    pub empty: Barrier,
}

/// A position in a ring of buffers. It consists of the index of a buffer, and the parity of the mbarrier
/// phase that completes when the buffer contains its tiles.
#[derive(Clone, Copy)]
pub(crate) struct RingPosition {
    /// Index of the buffer.
    pub index: u32,
    /// Parity (0 or 1) of the mbarrier phase that a consumer warpgroup waits for. The parity changes each
    /// time the positions start again with the first buffer.
    pub parity: u32,
}

impl RingPosition {
    /// The position of the first buffer.
    pub const FIRST: Self = Self { index: 0, parity: 0 };

    /// Returns the next position in a ring of `count` buffers.
    #[inline(always)]
    pub fn next(self, count: u32) -> Self {
        let last = self.index + 1 == count;
        Self { index: if last { 0 } else { self.index + 1 }, parity: self.parity ^ u32::from(last) }
    }

    /// Returns the position after `count` more buffers.
    #[inline(always)]
    pub fn skip<K: GemmKernel>(self, count: u32) -> Self {
        let at = self.index + count;
        Self { index: at % K::TILE.stages, parity: self.parity ^ (at / K::TILE.stages % 2) }
    }
}

impl<K: GemmKernel> RingLayout<K> {
    const STAGE_BYTES: u32 = K::X_BYTES + K::W_BYTES;
    const STAGING: u32 = K::TILE.stages * Self::STAGE_BYTES;
    const BARRIERS: u32 = Self::STAGING + K::WARPS * K::TILE.staging * STAGING_BYTES;
    const OPERAND_BARRIERS: u32 = Self::BARRIERS + 2 * K::TILE.stages * Barrier::BYTES;

    /// Returns the layout in the shared memory of this launch.
    #[inline(always)]
    pub fn of_launch() -> Self {
        Self { base: shared_base(ALIGN), kernel: PhantomData }
    }

    /// Returns the buffer at a position of the ring.
    #[inline(always)]
    pub fn stage(self, at: RingPosition) -> Stage {
        let x = self.base + at.index * Self::STAGE_BYTES;
        let barriers = self.base + Self::BARRIERS + 2 * at.index * Barrier::BYTES;
        let [full, empty] = [0, Barrier::BYTES].map(|offset| Barrier::at(barriers + offset));
        Stage { x, w: x + K::X_BYTES, full, empty }
    }

    /// Returns the address of the buffers in which consumer warp number `warp` of the block stages its
    /// results for TMA.
    #[inline(always)]
    pub fn staging(self, warp: u32) -> u32 {
        self.base + Self::STAGING + warp * K::TILE.staging * STAGING_BYTES
    }

    /// Returns staging buffer `index` of consumer warp `warp` of the block, and its mbarrier. The mbarrier
    /// completes a phase when TMA has loaded an operand of the epilogue into the buffer.
    #[inline(always)]
    pub fn operand(self, warp: u32, index: u32) -> (u32, Barrier) {
        let number = warp * K::TILE.staging + index;
        let barrier = Barrier::at(self.base + Self::OPERAND_BARRIERS + number * Barrier::BYTES);
        (self.base + Self::STAGING + number * STAGING_BYTES, barrier)
    }

    /// Initializes the mbarriers and synchronizes the cluster. All threads of the block call this function.
    ///
    /// # Safety
    /// The launch has enough shared memory for the layout.
    #[inline(always)]
    pub unsafe fn make_barriers(self) {
        let readers = if K::TILE.ping_pong { 1 } else { K::TILE.groups };
        if thread::index()[0] == 0 {
            let mut at = RingPosition::FIRST;
            for _ in 0..K::TILE.stages {
                let stage = self.stage(at);
                // SAFETY: `init` writes the mbarriers, and only thread 0 executes it. The caller guarantees
                // that the mbarriers are in the shared memory of the launch.
                unsafe {
                    stage.full.init(1);
                    stage.empty.init(readers * K::TILE.cluster);
                }
                at = at.next(K::TILE.stages);
            }
            if K::LOADS_OPERAND {
                for number in 0..K::WARPS * K::TILE.staging {
                    // SAFETY: as above.
                    unsafe { self.operand(0, number).1.init(1) };
                }
            }
            publish();
        }
        if K::TILE.cluster > 1 { cluster::sync() } else { block::sync() }
    }
}
