//! Tile sizes of a kernel, and the launch sizes that follow from them.
use super::single_buffer;

/// The tile sizes of a kernel. Fields with the suffix `16` count in units of 16 rows or columns, the size of
/// a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Tiling {
    /// Warps per block.
    pub warps: u32,
    /// Rows per warp, in units of 16.
    pub rows16: usize,
    /// Largest head dimension, in units of 16.
    pub dim16: usize,
    /// Rows of an inner-loop tile, in units of 16. They are keys, or queries if the kernel computes gradients
    /// of keys.
    pub cols16: usize,
    /// Buffers for tiles of keys, and for tiles of values.
    /// With two, the block copies one tile while it computes on the other.
    /// With one, it copies values during QKᵀ, and the next keys during PV.
    pub buffers: u32,
}

impl Tiling {
    /// Rows per block. They are queries, or keys if the kernel computes gradients of keys.
    pub const fn rows(&self) -> u32 {
        self.warps * 16 * self.rows16 as u32
    }
    /// Threads per block.
    pub const fn threads(&self) -> u32 {
        self.warps * 32
    }
    /// Bytes of shared memory per block: one query tile and the buffers of keys and values. Kernels with one
    /// buffer also keep their block state there.
    pub const fn shared_bytes(&self) -> u32 {
        let rows = self.rows() + 2 * self.buffers * 16 * self.cols16 as u32;
        rows * (2 * self.dim16 as u32 + 1) * 16
            + if self.buffers == 1 { single_buffer::KEPT_BYTES } else { 0 }
    }
}
