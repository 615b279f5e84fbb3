//! Tile sizes and kernel argument of the matrix products with `mma.sync`.
use core::num::NonZero;

/// Elements of K per buffer of the ring.
pub const BUFFER_DEPTH: u32 = 32;
/// Buffers of the ring. With three buffers, two blocks with tiles of 128 x 128 fit on an SM that has 100 KB
/// of shared memory.
pub const BUFFERS: u32 = 3;
/// Threads per block: four warps, in two rows and two columns.
pub const THREADS: u32 = 128;

/// The tile sizes of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct WarpTile {
    /// Rows per warp, in units of 16.
    pub rows16: usize,
    /// Columns per warp, in units of 16.
    pub columns16: usize,
}

impl WarpTile {
    /// Returns the number of rows per block.
    pub const fn rows(&self) -> u32 {
        2 * 16 * self.rows16 as u32
    }

    /// Returns the number of columns per block.
    pub const fn columns(&self) -> u32 {
        2 * 16 * self.columns16 as u32
    }

    /// Returns the bytes of shared memory per block. After the multiplications, the block uses the memory of
    /// the ring for its results.
    pub const fn shared_bytes(&self) -> u32 {
        let ring = BUFFERS * (self.rows() + self.columns()) * BUFFER_DEPTH * 2;
        assert!(ring >= self.rows() * self.columns() * 2);
        ring
    }
}

/// An operand of a matrix product. Its columns (K) are contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MatrixRows {
    /// The first row.
    pub base: *const u8,
    /// Distance of two rows in bytes.
    pub row_bytes: u64,
    /// Number of rows.
    pub rows: u32,
}

/// The argument of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LinearParams {
    /// The left operand.
    pub x: MatrixRows,
    /// The right operand, which is transposed: each row gives a column of `y`.
    pub w: MatrixRows,
    /// The result.
    pub y: *mut u8,
    /// Distance of two rows of `y` in bytes.
    pub y_row_bytes: u64,
    /// The bias, one element per column of `y`, or null.
    pub bias: *const u8,
    /// Number of columns of `x` and of `w` (K). It is a multiple of 8.
    pub depth: u32,
    /// 1 if rows of `y` are aligned to 16 bytes, otherwise 0. With 0, a kernel stores single elements.
    pub vector_y: u32,
    /// Number of rows of tiles.
    pub tile_rows: u32,
    /// The blocks compute the tiles in groups of this number of rows of tiles, so that the operands of the
    /// tiles that run at the same time stay in L2.
    pub group_rows: NonZero<u32>,
    /// Number of tiles of a group: `group_rows` times the number of columns of tiles.
    pub group_tiles: NonZero<u32>,
}
