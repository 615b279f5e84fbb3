//! Tile sizes and kernel argument of the matrix products with `mma.sync`.
use crate::gemm::tile_order::TileOrder;

/// Elements of K per buffer of the ring.
pub const BUFFER_DEPTH: u32 = 32;
/// Number of buffers of the ring in shared memory. With three buffers, two blocks with tiles of 128 x 128 fit
/// on an SM that has 100 KB of shared memory.
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

    /// Returns the bytes of shared memory per block. The block stages its results in the memory that
    /// contained operands, so it needs no memory in addition to the buffers of operand tiles.
    pub const fn shared_bytes(&self) -> u32 {
        let ring = BUFFERS * (self.rows() + self.columns()) * BUFFER_DEPTH * 2;
        assert!(ring >= self.rows() * self.columns() * 2);
        ring
    }
}

/// Tiles of 128 x 128.
pub const T128X128: WarpTile = WarpTile { rows16: 4, columns16: 4 };
/// Tiles of 64 x 64.
pub const T64X64: WarpTile = WarpTile { rows16: 2, columns16: 2 };
/// Tiles of 64 rows and 128 columns, for an epilogue that combines two halves of 64 columns.
pub const T64X128: WarpTile = WarpTile { rows16: 2, columns16: 4 };

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
    /// The weight `w`. Each of its rows gives a column of `x wᵀ`. If the epilogue combines two halves of `x
    /// wᵀ`, these are the rows of the half that starts at the first of the epilogue's `starts`.
    pub w: MatrixRows,
    /// The result.
    pub y: *mut u8,
    /// Distance of two rows of `y` in bytes.
    pub y_row_bytes: u64,
    /// The bias, one element per row of the weight, or null.
    pub bias: *const u8,
    /// Number of columns of `x` and of `w` (K). It is a multiple of 8.
    pub depth: u32,
    /// 1 if rows of `y` are aligned to 16 bytes, otherwise 0. With 0, a kernel stores single elements.
    pub vector_y: u32,
    /// The order of the tiles.
    pub order: TileOrder,
}
