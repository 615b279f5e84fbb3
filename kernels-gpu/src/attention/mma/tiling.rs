//! Tile sizes of an attention kernel. The tile sizes determine the number of threads and the bytes of shared
//! memory per block.
use super::single_buffer;

/// The tile sizes of an attention kernel. Fields with the suffix `16` count in units of 16 rows or columns,
/// because an MMA's A operand is a 16 x 16 matrix.
#[derive(Clone, Copy, Debug)]
pub struct Tiling {
    /// Warps per block.
    pub warps: u32,
    /// Rows per warp, in units of 16.
    pub rows16: usize,
    /// Largest head dimension, in units of 16.
    pub dim16: usize,
    /// Rows of an inner-loop tile, in units of 16. A block loads one inner-loop tile per iteration of its
    /// main loop. The rows are keys, except in a kernel for dK and dV, where the rows are queries.
    pub cols16: usize,
    /// Number of buffers for key tiles in shared memory. The number of buffers for value tiles is the same.
    ///
    /// With two buffers, the block copies the next tiles of keys and values while it computes on the current
    /// tiles. With one buffer, the block copies a tile of values while it computes QKᵀ, and the next tile of
    /// keys while it computes PV.
    pub buffers: u32,
}

impl Tiling {
    /// Returns the number of rows per block. The rows are queries, except in a kernel for dK and dV, where
    /// the rows are keys.
    pub const fn rows(&self) -> u32 {
        self.warps * 16 * self.rows16 as u32
    }
    /// Returns the number of threads per block.
    pub const fn threads(&self) -> u32 {
        self.warps * 32
    }
    /// Returns the bytes of shared memory per block of a forward kernel: one query tile, and the buffers of
    /// keys and values. Kernels with `buffers == 1` also keep tile coordinates and pointers in shared memory.
    pub const fn shared_bytes(&self) -> u32 {
        let rows = self.rows() + 2 * self.buffers * 16 * self.cols16 as u32;
        rows * (2 * self.dim16 as u32 + 1) * 16
            + if self.buffers == 1 { single_buffer::KEPT_BYTES } else { 0 }
    }
}
