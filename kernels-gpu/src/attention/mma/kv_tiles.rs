//! Keys and values in shared memory, tile by tile.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::params::AttentionParams;
use super::tile::{Copier, Tile};
use super::tile_coords::TileCoords;

/// Which of the two.
pub(super) const KEYS: usize = 0;
pub(super) const VALUES: usize = 1;

/// Two tiles of each.
pub(super) struct Keys<T, const DIM16: usize> {
    buffers: [Tile<T, DIM16>; 2],
    copiers: [Copier<T, DIM16>; 2],
    /// Keys of a tile.
    pub count: u32,
    /// The tile behind the last.
    end: u32,
    vector: bool,
}

impl<T: MatrixElem, const DIM16: usize> Keys<T, DIM16> {
    /// Tiles of `count` keys up to number `end`, for a block of so many threads.
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

    /// A tile of keys, or of values.
    #[inline(always)]
    pub fn tile(&self, side: usize, tile: u32) -> Tile<T, DIM16> {
        self.buffers[side].at_row(tile % 2 * self.count)
    }

    /// Begins to copy it, if there is such a tile.
    ///
    /// # Safety
    /// The tensors are readable; a barrier stands between this and all uses of the tile that is in its place.
    #[inline(always)]
    pub unsafe fn copy(&self, side: usize, tile: u32) {
        if tile < self.end {
            let (to, first) = (self.tile(side, tile), tile * self.count);
            // SAFETY: as the caller promises.
            unsafe { self.copiers[side].copy(&to, first, self.count, self.vector) };
        }
    }
}
