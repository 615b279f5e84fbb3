//! Writes a tile of the result of a matrix product. Each warp copies its rows to shared memory, from which
//! TMA stores them to global memory.
use core::mem::replace;

use cuda_std::hopper::publish_shared;
use cuda_std::hopper::tensor_map::{Map, close_stores, wait_for_stores};
use cuda_std::warp;

use super::fragments::{Fragments, counter};
use super::layout::{RingLayout, RingPosition};
use super::operand::TileOperand;
use super::params::{GemmParams, SLICE, STAGING_BYTES, WARP_ROWS};
use super::schedule::part_place;
use super::shape::GemmKernel;
use crate::layout::own_thread::own_thread;

/// The position of a warp in the ring of its staging buffers.
#[derive(Clone, Copy)]
pub(crate) struct Stores {
    next: RingPosition,
}

impl Stores {
    /// The position before the first tile.
    pub const FIRST: Self = Self { next: RingPosition::FIRST };

    /// Waits until TMA has read all staging buffers of the warp.
    #[inline(always)]
    pub fn finish(self) {
        if warp::lane() == 0 {
            wait_for_stores();
        }
        warp::sync(u32::MAX);
    }

    /// Returns the position of the next staging buffer (shared memory for results).
    #[inline(always)]
    fn take<K: GemmKernel>(&mut self) -> RingPosition {
        let next = match K::LOADS_OPERAND {
            true => self.next.next(K::TILE.staging),
            // A warp has one buffer, or alternates between two. This formula needs fewer registers.
            false => RingPosition { index: K::TILE.staging - 1 - self.next.index, parity: 0 },
        };
        replace(&mut self.next, next)
    }
}

/// Writes the results of the tiles of a consumer warpgroup.
#[derive(Clone, Copy)]
pub(crate) struct TileOutput<'a, K: GemmKernel> {
    pub layout: RingLayout<K>,
    /// The number of the consumer warpgroup.
    pub group: u32,
    /// The tensor map of the result.
    pub y: Map,
    /// The tensor map of the operand of the epilogue. If there is no such operand, no code uses it.
    pub operand: Map,
    pub p: &'a GemmParams,
    pub epilogue: K::Epilogue,
}

impl<K: GemmKernel> TileOutput<'_, K> {
    /// Starts to load the operand of the epilogue for a tile. `[row, column]` is the place in `y` of the
    /// first sum of the warpgroup.
    ///
    /// # Safety
    /// The tensor maps belong to this launch. The whole warp calls this function.
    #[inline(always)]
    pub unsafe fn prepare(&self, place: [u32; 2], stores: &Stores) {
        if K::LOADS_OPERAND {
            // SAFETY: the caller guarantees that the tensor map belongs to this launch. The whole warp
            // executes this code.
            unsafe { self.operand(own_thread(), place).load_first(stores.next) };
        }
    }

    /// Applies the epilogue to the sums, and starts to store the results. `[row, column]` is the place in `y`
    /// of the first sum of the warpgroup.
    ///
    /// # Safety
    /// `p`, the epilogue and the tensor maps belong to this launch. The whole warp calls this function.
    #[inline(always)]
    pub unsafe fn store(&self, sums: &[K::Sums], place: [u32; 2], stores: &mut Stores) {
        const { assert!(K::COLUMNS.is_multiple_of(SLICE) || K::TILE.transposed) };
        let thread = own_thread();
        // The compiler can read `warp::lane()` from its special register again. Kernels that load an operand
        // lack a register to keep the lane.
        let lane = if K::LOADS_OPERAND { warp::lane() } else { thread % warp::SIZE };
        let operand = self.operand(thread, place);
        let Self { p, epilogue, .. } = *self;
        let buffers = self.layout.staging(operand.warp);
        let fragments = Fragments::<K> { sums, lane, first: operand.first, p, epilogue };
        // SAFETY: the caller guarantees that the epilogue belongs to this launch.
        let mut ahead = [unsafe { fragments.fetch(0, 0) }; 2];
        if Fragments::<K>::AHEAD == 2 {
            // SAFETY: as above.
            ahead[1] = unsafe { fragments.fetch(0, 1) };
        }
        let mut part = 0;
        while part < K::PARTS {
            let at = stores.take::<K>();
            let buffer = buffers + at.index * STAGING_BYTES;
            // SAFETY: the caller guarantees that `p`, the epilogue and the tensor maps belong to this launch.
            // The whole warp executes this code. `publish_shared` and the warp barrier make the warp's writes
            // to shared memory visible to TMA.
            unsafe {
                operand.wait(at);
                fragments.write(part, buffer, &mut ahead);
                publish_shared();
                warp::sync(u32::MAX);
                if lane == 0 {
                    let [row, column] = part_place::<K>(operand.first, part);
                    self.y.store(buffer, [column, row, 0, 0]);
                    close_stores();
                    operand.load_next(part, at);
                }
            }
            part = counter::<K>(part + 1);
        }
    }

    /// Returns the operand of the epilogue for a tile, for the warp of thread `thread`.
    #[inline(always)]
    fn operand(&self, thread: u32, [row, column]: [u32; 2]) -> TileOperand<K> {
        let warp = thread % 128 / warp::SIZE;
        let first = [row + warp * WARP_ROWS, column];
        TileOperand { map: self.operand, layout: self.layout, warp: self.group * 4 + warp, first }
    }
}
