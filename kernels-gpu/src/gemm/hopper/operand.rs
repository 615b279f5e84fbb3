//! Loads an operand of the epilogue, such as a residual, into the staging buffers of a warp.
//!
//! TMA loads parts of the operand while the warpgroups multiply. A part has the rows and columns of a staging
//! buffer. The epilogue reads a part, and writes its results to the same place.
use cuda_std::hopper::tensor_map::{Map, wait_for_groups};
use cuda_std::warp;

use super::layout::{RingLayout, RingPosition};
use super::params::STAGING_BYTES;
use super::schedule::part_place;
use super::shape::GemmKernel;

/// The operand of a tile, for one warp.
#[derive(Clone, Copy)]
pub(crate) struct TileOperand<K> {
    /// The tensor map of the operand.
    pub map: Map,
    pub layout: RingLayout<K>,
    /// The number of the warp among the consumer warps of the block.
    pub warp: u32,
    /// The row and the column in `y` of the warp's first sum.
    pub first: [u32; 2],
}

impl<K: GemmKernel> TileOperand<K> {
    /// Starts to load the first parts of a tile. `at` is the position of the first part in the ring of
    /// staging buffers.
    ///
    /// # Safety
    /// The tensor map belongs to this launch. The warp has stored the results of its previous tile, and all
    /// its lanes call this function.
    #[inline(always)]
    pub unsafe fn load_first(&self, mut at: RingPosition) {
        if warp::lane() == 0 {
            wait_for_groups::<0>();
            for part in 0..K::TILE.staging.min(K::PARTS) {
                // SAFETY: TMA has read the previous contents of all staging buffers. The caller guarantees
                // the rest.
                unsafe { self.load(part, at.index) };
                at = at.next(K::TILE.staging);
            }
        }
    }

    /// If the tile has more parts than there are staging buffers, starts to load another one into the buffer
    /// of part `part - 1`. Lane 0 calls this function after it has started to store part `part` from the
    /// buffer at the position `at`.
    ///
    /// # Safety
    /// The tensor map belongs to this launch.
    #[inline(always)]
    pub unsafe fn load_next(&self, part: u32, at: RingPosition) {
        if !K::LOADS_OPERAND || K::PARTS <= K::TILE.staging {
            return;
        }
        let next = part + K::TILE.staging - 1;
        if part > 0 && next < K::PARTS {
            wait_for_groups::<1>();
            // SAFETY: TMA has read the results of part `part - 1` from the buffer. The caller guarantees the
            // rest.
            unsafe { self.load(next, (at.index + K::TILE.staging - 1) % K::TILE.staging) };
        }
    }

    /// Waits until the warp may use the staging buffer at a position of their ring: until it has the operand,
    /// or, without an operand, until TMA has read its previous contents.
    ///
    /// # Safety
    /// The mbarriers are initialized. All lanes of the warp call this function.
    #[inline(always)]
    pub unsafe fn wait(&self, at: RingPosition) {
        if K::LOADS_OPERAND {
            // SAFETY: the caller guarantees that the mbarriers are initialized.
            unsafe { self.layout.operand(self.warp, at.index).1.wait(at.parity) };
            return;
        }
        if warp::lane() == 0 {
            if K::TILE.staging == 2 { wait_for_groups::<1>() } else { wait_for_groups::<0>() }
        }
        warp::sync(u32::MAX);
    }

    /// Starts to load part `part` into staging buffer `index`.
    ///
    /// # Safety
    /// The tensor map belongs to this launch. No access to the buffer is in progress, and only one lane calls
    /// this function.
    #[inline(always)]
    unsafe fn load(&self, part: u32, index: u32) {
        let (buffer, loaded) = self.layout.operand(self.warp, index);
        let [row, column] = part_place::<K>(self.first, part);
        // SAFETY: the mbarrier is initialized. The box of the tensor map has the size of the buffer.
        unsafe {
            loaded.expect(STAGING_BYTES);
            self.map.copy(buffer, [column, row, 0, 0], loaded);
        }
    }
}
