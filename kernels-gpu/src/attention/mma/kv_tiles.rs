//! Double-buffered tiles of keys and values in shared memory.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::params::AttentionParams;
use super::tile::{Copier, Tile};
use super::tile_coords::TileCoords;

/// Values of the parameter `side`: [`KEYS`] selects the key tensor, and [`VALUES`] selects the value tensor.
pub(super) const KEYS: usize = 0;
pub(super) const VALUES: usize = 1;

/// Two buffers for key tiles and two buffers for value tiles, and the `Copier` objects that copy rows to
/// these buffers.
pub(super) struct Keys<T, const DIM16: usize> {
    buffers: [Tile<T, DIM16>; 2],
    copiers: [Copier<T, DIM16>; 2],
    /// Keys per tile.
    pub count: u32,
    /// Number of the last tile plus one.
    end: u32,
    /// True if the threads copy 16 bytes at a time, which requires rows aligned to 16 bytes. If false, the
    /// threads copy single elements.
    vector: bool,
}

impl<T: MatrixElem, const DIM16: usize> Keys<T, DIM16> {
    /// Allocates the buffers in shared memory, for tiles of `count` keys. The block processes tiles with
    /// numbers below `end`. A block has `threads` threads.
    #[inline(always)]
    pub fn take(
        memory: &mut SharedMemory,
        p: &AttentionParams,
        coords: &TileCoords,
        [count, end]: [u32; 2],
        threads: u32,
        vector: bool,
    ) -> Self {
        let copiers = [&p.k, &p.v].map(|heads| {
            Copier::of(coords.key(heads, p.group), heads.token_stride, [coords.keys, p.dim], threads)
        });
        let buffers = [(); 2].map(|()| Tile::take(memory, 2 * count));
        Self { buffers, copiers, count, end, vector }
    }

    /// Returns the buffer of tile number `tile` of keys or values. `side` is [`KEYS`] or [`VALUES`].
    #[inline(always)]
    pub fn tile(&self, side: usize, tile: u32) -> Tile<T, DIM16> {
        self.buffers[side].at_row(tile % 2 * self.count)
    }

    /// Starts to copy tile number `tile` of keys or values to its buffer. `side` is [`KEYS`] or [`VALUES`].
    /// If there is no tile with this number, this function does nothing.
    ///
    /// # Safety
    /// The tensors are readable. A barrier separates this copy from earlier accesses to the same buffer.
    #[inline(always)]
    pub unsafe fn copy(&self, side: usize, tile: u32) {
        if tile < self.end {
            let (to, first) = (self.tile(side, tile), tile * self.count);
            // SAFETY: the copy reads rows of the tensor and overwrites a buffer. The caller guarantees that
            // the tensors are readable, and that a barrier followed earlier accesses to this buffer.
            unsafe { self.copiers[side].copy(&to, first, self.count, self.vector) };
        }
    }
}
