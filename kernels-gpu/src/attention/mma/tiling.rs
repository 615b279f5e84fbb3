//! The tiles of a kernel, and what follows from their sizes for a launch.
use super::single_buffer;

/// The tiles of a kernel, in units of 16, the size of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Tiling {
    /// Warps of a block.
    pub warps: u32,
    /// Rows of a warp.
    pub rows16: usize,
    /// Columns of a head, at least.
    pub dim16: usize,
    /// Rows of the other side that a step takes: the keys of a tile, or, for gradients of keys, queries.
    pub cols16: usize,
    /// Tiles of keys, and of values, that there is room for: two, of which one is copied while the other is
    /// worked on; or one, and values are copied between the products with keys, the next keys between those
    /// with values.
    pub buffers: u32,
}

impl Tiling {
    /// Rows of a block: queries, or, for their gradients, keys.
    pub const fn rows(&self) -> u32 {
        self.warps * 16 * self.rows16 as u32
    }
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        self.warps * 32
    }
    /// Shared memory of a block, in bytes: a tile of queries, those of keys and values, and, where these are
    /// one each, what else the block keeps there.
    pub const fn shared_bytes(&self) -> u32 {
        let rows = self.rows() + 2 * self.buffers * 16 * self.cols16 as u32;
        rows * (2 * self.dim16 as u32 + 1) * 16
            + if self.buffers == 1 { single_buffer::KEPT_BYTES } else { 0 }
    }
}
