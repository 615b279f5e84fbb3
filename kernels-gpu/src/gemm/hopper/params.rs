//! Tile sizes and kernel argument of the Hopper matrix products.
use crate::gemm::tile_order::TileOrder;

/// Rows of a `wgmma` instruction.
pub const WGMMA_ROWS: u32 = 64;
/// Elements of K per buffer. 64 elements of 16 bits are 128 bytes, the row length of TMA's 128-byte swizzle.
/// If the elements have 8 bits, this number and the tensor maps of `x` and `w` count pairs of elements.
pub const DEPTH: u32 = 64;
/// Columns per column slice of the result. 64 columns of 16 bits are 128 bytes, the row length of TMA's
/// 128-byte swizzle.
pub const SLICE: u32 = 64;
/// Rows of the result that a warp writes. One TMA store writes 64 columns of these rows.
pub const WARP_ROWS: u32 = 16;
/// Bytes of a staging buffer, in which a warp collects 64 columns of its 16 rows before TMA stores them.
pub const STAGING_BYTES: u32 = WARP_ROWS * SLICE * 2;
/// Maximum bytes of shared memory per block on Hopper.
const MAX_SHARED_BYTES: u32 = 232_448;

/// The tile sizes of a matrix product on Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTile {
    /// Number of blocks of 64 rows that a consumer warpgroup computes. For each block, it executes one
    /// `wgmma` instruction per 16 elements of K.
    pub blocks: u32,
    /// Columns of the tile.
    pub columns: u32,
    /// Consumer warpgroups.
    pub groups: u32,
    /// Number of buffers of the ring in shared memory. A buffer contains 64 elements of K of every row of a
    /// tile of `x` and of a tile of `w`.
    pub stages: u32,
    /// Number of staging buffers per warp, which contain results for TMA to store. With 2, the warp fills one
    /// buffer while TMA reads the other one. Kernels that load an operand of the epilogue into these buffers
    /// have more of them: see `GemmTile::with_operand`.
    pub staging: u32,
    /// Blocks per cluster, 1 or 2. Two blocks of a cluster compute adjacent tiles, so both need the same tile
    /// of one operand. Each block loads half of this tile, and TMA copies this half to both blocks
    /// (multicast).
    pub cluster: u32,
    /// Whether the two blocks of a cluster need the same rows of `x`, because their tiles have the same rows
    /// of `y` and adjacent columns. If false, they need the same rows of `w`.
    pub shares_x: bool,
    /// Whether each consumer warpgroup computes tiles of its own. While one warpgroup multiplies, the other
    /// one then writes its results. If false, the warpgroups of a block divide the rows of each tile.
    pub ping_pong: bool,
    /// Whether the kernel computes `yᵀ = w xᵀ` instead of `y = x wᵀ`. The tile's rows are then rows of `w`,
    /// and its columns are rows of `x`. For results with few rows, the transposed computation is faster. A
    /// tile has at least 64 rows, the size of `wgmma`, but may have as few as 16 columns.
    pub transposed: bool,
}

/// The fastest tile sizes for most shapes with K up to about 5,000.
pub const T128X192: GemmTile = GemmTile {
    blocks: 2,
    columns: 192,
    groups: 2,
    stages: 5,
    staging: 1,
    cluster: 2,
    shares_x: false,
    ping_pong: true,
    transposed: false,
};
/// For small shapes, which have too few larger tiles to occupy all SMs.
pub const T128X128: GemmTile = GemmTile { columns: 128, stages: 6, staging: 2, ..T128X192 };
/// For shapes such as 4608 x 3072. With tiles of this size, the fewest SMs are idle in the last wave of
/// tiles.
pub const T192X192: GemmTile = GemmTile {
    blocks: 1,
    columns: 192,
    groups: 3,
    stages: 4,
    staging: 1,
    cluster: 2,
    shares_x: false,
    ping_pong: false,
    transposed: false,
};
/// Tile sizes for large K. The warpgroups of a block divide one tile of 256 x 128, 128 x 256 or 256 x 192.
/// Kernels with such tiles read less from L2 than kernels with smaller tiles. L2 reads then consume less of
/// the GPU's power limit, so the tensor cores can run at higher clock rates.
pub const T256X128: GemmTile = GemmTile {
    blocks: 2,
    columns: 128,
    groups: 2,
    stages: 4,
    staging: 2,
    cluster: 2,
    shares_x: true,
    ping_pong: false,
    transposed: false,
};
/// As [`T256X128`], with wide tiles.
pub const T128X256: GemmTile = GemmTile { blocks: 1, columns: 256, shares_x: false, ..T256X128 };
/// As [`T256X128`], with the largest tiles.
pub const T256X192: GemmTile = GemmTile { columns: 192, stages: 3, ..T256X128 };
/// For results with at most 16 rows. The time of such a product is the time to read `w` from global memory.
/// The ring has as many buffers as fit, so that many copies are in flight.
pub const T64X16: GemmTile = GemmTile {
    blocks: 1,
    columns: 16,
    groups: 2,
    stages: 20,
    staging: 1,
    cluster: 1,
    shares_x: false,
    ping_pong: true,
    transposed: true,
};
/// Like [`T64X16`], for at most 32 rows. The two blocks of a cluster load `x` only once for both. Otherwise,
/// the loads of `x` would use too much of the L2 bandwidth.
pub const T64X32: GemmTile = GemmTile { columns: 32, stages: 16, staging: 2, cluster: 2, ..T64X16 };
/// As [`T64X32`], for at most 64 rows.
pub const T64X64: GemmTile = GemmTile { columns: 64, stages: 12, ..T64X32 };
/// For results with at most 32 rows and few columns. The two blocks of a cluster need the same rows of `w`,
/// and each loads half of them. Each block computes half of the rows of `y`. Compared with [`T64X32`], more
/// SMs load `w`.
pub const T64X16_HALF: GemmTile = GemmTile { cluster: 2, shares_x: true, ..T64X16 };
/// As [`T64X16_HALF`], for at most 64 rows.
pub const T64X32_HALF: GemmTile = GemmTile { columns: 32, stages: 16, staging: 2, ..T64X16_HALF };
/// As [`T128X192`], for an epilogue with an operand.
pub const T128X192_OPERAND: GemmTile = T128X192.with_operand(4, 4);
/// As [`T128X128`], for an epilogue with an operand.
pub const T128X128_OPERAND: GemmTile = T128X128.with_operand(5, 4);
/// As [`T192X192`], for an epilogue with an operand.
pub const T192X192_OPERAND: GemmTile = T192X192.with_operand(3, 3);
/// For kernels that add the accumulators to f32 sums, which need as many registers as the accumulators.
pub const T128X128_PROMOTED: GemmTile = GemmTile { blocks: 1, ping_pong: false, ..T128X128 };
/// As [`T128X128_PROMOTED`], with wide tiles.
pub const T128X192_PROMOTED: GemmTile = GemmTile { blocks: 1, ping_pong: false, ..T128X192 };

impl GemmTile {
    /// Returns the tile with fewer buffers of the ring and more staging buffers. While the block multiplies,
    /// TMA loads an operand of the epilogue, such as a residual, into the staging buffers.
    const fn with_operand(self, stages: u32, staging: u32) -> Self {
        Self { stages, staging, ..self }
    }

    /// Returns the number of rows of a tile.
    pub const fn rows(&self) -> u32 {
        self.blocks * WGMMA_ROWS * if self.ping_pong { 1 } else { self.groups }
    }

    /// Returns the number of threads per block.
    pub const fn threads(&self) -> u32 {
        (self.groups + 1) * 128
    }

    /// Returns the number of rows and of columns that the tiles of a cluster's blocks have together.
    pub const fn cluster_size(&self) -> [u32; 2] {
        if self.shares_x {
            [self.rows(), self.columns * self.cluster]
        } else {
            [self.rows() * self.cluster, self.columns]
        }
    }

    /// Returns two numbers: the rows of `x` and the rows of `w` that one TMA copy moves. If `halves` is true,
    /// a tile of `w` consists of rows from two halves of `w`, and each copy moves rows of one half.
    pub const fn box_rows(&self, halves: bool) -> [u32; 2] {
        let parts = if halves { 2 } else { 1 };
        if self.shares_x {
            [self.rows() / self.cluster, self.columns / parts]
        } else if halves {
            [self.rows(), self.columns / 2]
        } else {
            [self.rows(), self.columns / self.cluster]
        }
    }

    /// Returns the bytes of shared memory per block. Shared memory contains the ring of operand tiles, the
    /// results that warps stage for TMA, the mbarriers, and 1024 bytes for the alignment of the ring.
    pub const fn shared_bytes(&self) -> u32 {
        let ring = self.stages * (self.rows() + self.columns) * DEPTH * 2;
        let staging = self.groups * 4 * self.staging;
        let bytes = ring + staging * (STAGING_BYTES + 8) + self.stages * 16 + 1024;
        assert!(bytes <= MAX_SHARED_BYTES);
        bytes
    }
}

/// Kernel argument that follows the tensor maps of `x`, `w` and `y`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GemmParams {
    /// The bias, with one element per row of `w`, aligned to two elements. The pointer is null if there is no
    /// bias.
    pub bias: *const u8,
    /// Columns of `y`.
    pub columns: u32,
    /// Number of buffers that the kernel fills and reads for one tile: the bytes of a row of `x`, divided by
    /// 128 and rounded up.
    pub depth_tiles: u32,
    /// The order in which the blocks compute tiles. In launches with clusters, the order counts the joint
    /// tiles of all blocks of a cluster.
    pub order: TileOrder,
}
