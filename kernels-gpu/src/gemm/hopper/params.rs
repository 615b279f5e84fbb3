//! Tile sizes and kernel argument of the Hopper matrix products.
use crate::gemm::tile_order::TileOrder;

/// Rows of a `wgmma` instruction.
pub const WGMMA_ROWS: u32 = 64;
/// Elements of K per buffer: 64 elements of 16 bits are a row of TMA's 128-byte swizzle.
pub const DEPTH: u32 = 64;
/// Columns per column slice of the result. A slice has rows of 128 bytes.
pub const SLICE: u32 = 64;
/// Rows of the result that a warp writes. TMA stores a slice of these rows.
pub const WARP_ROWS: u32 = 16;
/// Bytes of a staging buffer: a slice of the rows of a warp.
pub const STAGING_BYTES: u32 = WARP_ROWS * SLICE * 2;
/// Maximum bytes of shared memory per block on Hopper.
const MAX_SHARED_BYTES: u32 = 232_448;

/// The tile sizes of a matrix product on Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTile {
    /// `wgmma` instructions per consumer warpgroup and step of K. Each computes 64 rows.
    pub blocks: u32,
    /// Columns of the tile.
    pub columns: u32,
    /// Consumer warpgroups.
    pub groups: u32,
    /// Buffers of the ring. A buffer has 64 elements of K of every row of `x` and `w`.
    pub stages: u32,
    /// Blocks per cluster, 1 or 2. The two blocks of a cluster compute adjacent tiles. Each of them loads
    /// half of the operand that both need, and TMA copies this half to both blocks (multicast).
    pub cluster: u32,
    /// Whether the two blocks of a cluster need the same rows of `x`, and compute adjacent columns of `y`.
    /// Otherwise, they need the same rows of `w`.
    pub shares_x: bool,
    /// Whether each consumer warpgroup computes its own tile. While one warpgroup multiplies, the other one
    /// writes its results. Otherwise, the warpgroups divide the rows of a tile.
    pub ping_pong: bool,
    /// Whether the tile is a tile of the transpose of `y`. A row of the tile is then a row of `w`, which
    /// gives a column of `y`, and the kernel's `x` and `w` are exchanged. `wgmma` needs 64 rows, so this is
    /// for results with few rows.
    pub transposed: bool,
}

/// For most shapes with K up to about 5,000, the fastest kernel.
pub const T128X192: GemmTile = GemmTile {
    blocks: 2,
    columns: 192,
    groups: 2,
    stages: 5,
    cluster: 2,
    shares_x: false,
    ping_pong: true,
    transposed: false,
};
/// For small shapes. With larger tiles, many SMs would have no tile.
pub const T128X128: GemmTile = GemmTile { columns: 128, stages: 6, ..T128X192 };
/// For shapes such as 4608 x 3072. With this tile size, the fewest SMs are idle in the last wave.
pub const T192X192: GemmTile = GemmTile {
    blocks: 1,
    columns: 192,
    groups: 3,
    stages: 4,
    cluster: 2,
    shares_x: false,
    ping_pong: false,
    transposed: false,
};
/// For large K. Cooperative warpgroups with tiles of 256 x 128, 128 x 256 and 256 x 192 read less from L2
/// than smaller tiles, and so leave more of the GPU's power to the tensor cores.
pub const T256X128: GemmTile = GemmTile {
    blocks: 2,
    columns: 128,
    groups: 2,
    stages: 4,
    cluster: 2,
    shares_x: true,
    ping_pong: false,
    transposed: false,
};
/// As [`T256X128`], with wide tiles.
pub const T128X256: GemmTile = GemmTile { blocks: 1, columns: 256, shares_x: false, ..T256X128 };
/// As [`T256X128`], with the largest tiles.
pub const T256X192: GemmTile = GemmTile { columns: 192, stages: 3, ..T256X128 };
/// For results with at most 16 rows. The kernel reads `w` at the speed of memory. The ring is as large as
/// possible, so that many copies are in flight.
pub const T64X16: GemmTile = GemmTile {
    blocks: 1,
    columns: 16,
    groups: 2,
    stages: 20,
    cluster: 1,
    shares_x: false,
    ping_pong: true,
    transposed: true,
};
/// As [`T64X16`], for at most 32 rows. Two blocks share the rows of `x`, which would otherwise take more of
/// the bandwidth of L2.
pub const T64X32: GemmTile = GemmTile { columns: 32, stages: 16, cluster: 2, ..T64X16 };
/// As [`T64X32`], for at most 64 rows.
pub const T64X64: GemmTile = GemmTile { columns: 64, stages: 12, ..T64X32 };
/// For results with at most 32 rows and few columns. Two blocks share the rows of `w`, and each has half of
/// the rows of `y`, so that more SMs read `w`.
pub const T64X16_HALF: GemmTile = GemmTile { cluster: 2, shares_x: true, ..T64X16 };
/// As [`T64X16_HALF`], for at most 64 rows.
pub const T64X32_HALF: GemmTile = GemmTile { columns: 32, stages: 16, ..T64X16_HALF };

impl GemmTile {
    /// Returns the number of rows of a tile.
    pub const fn rows(&self) -> u32 {
        self.blocks * WGMMA_ROWS * if self.ping_pong { 1 } else { self.groups }
    }

    /// Returns the number of threads per block.
    pub const fn threads(&self) -> u32 {
        (self.groups + 1) * 128
    }

    /// Returns the rows and columns of the tiles of a cluster together.
    pub const fn cluster_size(&self) -> [u32; 2] {
        if self.shares_x {
            [self.rows(), self.columns * self.cluster]
        } else {
            [self.rows() * self.cluster, self.columns]
        }
    }

    /// Returns the rows of `x`, and the rows of `w`, that one TMA copy moves. `halves` says whether a tile of
    /// `w` has rows of two halves of `w`. A copy then moves rows of one of them.
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

    /// Returns the number of staging buffers of a warp: 2 if shared memory has space for them, otherwise 1.
    /// With 2, TMA reads one of them while the warp fills the other one.
    pub const fn staging(&self) -> u32 {
        if self.bytes_with(2) <= MAX_SHARED_BYTES { 2 } else { 1 }
    }

    /// Returns the bytes of shared memory per block: the ring, the staging buffers, the mbarriers, and 1024
    /// bytes for the alignment of the ring.
    pub const fn shared_bytes(&self) -> u32 {
        self.bytes_with(self.staging())
    }

    const fn bytes_with(&self, staging: u32) -> u32 {
        let ring = self.stages * (self.rows() + self.columns) * DEPTH * 2;
        ring + self.groups * 4 * staging * STAGING_BYTES + self.stages * 16 + 1024
    }
}

/// A kernel argument after the tensor maps of `x`, `w` and `y`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GemmParams {
    /// The bias, one element per row of `w`, or null. It is aligned to two elements.
    pub bias: *const u8,
    /// Columns of `y`.
    pub columns: u32,
    /// Number of buffers that a tile needs: the elements of K, divided by 64 and rounded up.
    pub depth_tiles: u32,
    /// The order of the tiles. If the launch has clusters, a tile is that of a cluster.
    pub order: TileOrder,
}
