//! Tile sizes and kernel argument of the Hopper kernels.
use core::num::NonZero;

use crate::attention::mma::params::Mask;

/// Queries per warpgroup. A `wgmma` instruction has 64 rows.
pub const GROUP_ROWS: u32 = 64;
/// Queries per warp. Each warp stores the result of its own rows.
pub const WARP_ROWS: u32 = 16;
/// Columns per column slice. A tile in shared memory is divided into slices of 64 columns. A row of a slice
/// has 64 elements of 16 bits, which are 128 bytes, the row length of TMA's 128-byte swizzle.
pub const PART: u32 = 64;

/// The tile sizes of a Hopper attention kernel.
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    /// Largest head dimension that the kernel supports.
    pub dim: u32,
    /// Keys per tile.
    pub keys: u32,
    /// Number of consumer warpgroups, which compute 64 queries each. In addition, a block has one producer
    /// warpgroup, which loads tiles.
    pub groups: u32,
    /// Pipeline stages. Each stage has one buffer for a key tile and one buffer for a value tile.
    pub stages: u32,
    /// True if the block first writes its result to a separate region of shared memory, from which TMA stores
    /// it to global memory.
    ///
    /// If false, threads store the result directly from registers. At head dimension 256, the separate region
    /// does not fit in shared memory. At small head dimensions or for few keys, TMA stores are not faster,
    /// because a launch with more shared memory per block takes longer.
    pub staged: bool,
}

/// Tile sizes for head dimensions up to 64. At these head dimensions, the exponentials of the softmax take as
/// long as the matrix multiplications, so three consumer warpgroups take turns. Each of their threads has 160
/// registers. Of these, 128 contain scores, probabilities and the result. A kernel with two consumer
/// warpgroups and larger tiles was slower.
pub const D64: Tiles = Tiles { dim: 64, keys: 128, groups: 3, stages: 2, staged: false };
/// Tile sizes for head dimensions up to 96.
pub const D96: Tiles = Tiles { dim: 96, keys: 144, groups: 2, stages: 2, staged: true };
/// Tile sizes for head dimensions up to 128.
pub const D128: Tiles = Tiles { dim: 128, keys: 144, groups: 2, stages: 2, staged: true };
/// Alternative tile sizes for head dimensions up to 128, with 128 keys per tile. The host estimates the time
/// of a launch with these sizes and with those of [`D128`], and selects the faster ones. The estimate
/// is the number of keys, rounded up to whole tiles, times a measured cost per key.
pub const D128_EVEN: Tiles = Tiles { keys: 128, staged: false, ..D128 };
/// Tile sizes for head dimensions up to 256. Larger tiles would not fit in shared memory.
pub const D256: Tiles = Tiles { dim: 256, keys: 80, groups: 2, stages: 2, staged: false };

impl Tiles {
    /// Returns the number of queries per tile.
    pub const fn rows(&self) -> u32 {
        self.groups * GROUP_ROWS
    }

    /// Returns the number of threads per block.
    pub const fn threads(&self) -> u32 {
        (self.groups + 1) * 128
    }

    /// Returns the bytes of shared memory per block. Shared memory contains tiles, mask values and mbarriers,
    /// and up to 1024 bytes of padding to align the tiles. Each pipeline stage has one f32 mask value per
    /// key. Each buffer has two mbarriers of 8 bytes.
    pub const fn shared_bytes(&self) -> u32 {
        let columns = self.dim.div_ceil(PART) * PART;
        let results = if self.staged { self.rows() } else { 0 };
        let tiles = (self.rows() + results + 2 * self.stages * self.keys) * columns * 2;
        tiles + self.stages * self.keys * 4 + (1 + 3 * self.stages) * 16 + 1024
    }
}

/// The last argument of the Hopper attention kernels. The other arguments are the tensor maps of q, k, v and
/// the result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HopperParams {
    /// Pointer to the result.
    pub out: *mut u8,
    /// Log-sum-exp of the scores of each query, in f32, with the shape `[B, H, Sq]`. If the pointer is null,
    /// the kernels do not write the log-sum-exp.
    pub lse: *mut f32,
    /// Strides of batch, query and head in the result, in bytes.
    pub out_strides: [i64; 3],
    /// Queries per batch.
    pub queries: u32,
    /// Keys per batch.
    pub keys: u32,
    /// Number of query heads.
    pub heads: NonZero<u32>,
    /// Query heads per key head (grouped-query attention).
    pub shared_by: NonZero<u32>,
    /// Number of query tiles per head.
    pub query_tiles: NonZero<u32>,
    /// Total number of query tiles of all heads and batches.
    pub tiles: u32,
    /// Number of heads per section, in causal kernels. A section is a group of consecutive heads. A kernel
    /// processes all query tiles of one section before the next section, so that the keys and values of a
    /// section stay in L2.
    pub section: NonZero<u32>,
    /// Number of query tiles per section, in causal kernels. A section is a group of consecutive heads.
    pub section_tiles: NonZero<u32>,
    /// Head dimension, a multiple of 8.
    pub dim: u32,
    /// In causal kernels, query `i` attends to the keys 0 to `i + diagonal`.
    pub diagonal: i32,
    /// The scale of the scores, multiplied by log2(e).
    pub scale: f32,
    /// The reciprocal `1 / s` of the scale `s` of the scores, without the factor log2(e) that kernels include
    /// in their base-2 exponents.
    pub unscale: f32,
    /// The mask. Its values depend on the key, but not on the query. Kernels use this field only if their
    /// const parameter `PADDED` is true.
    pub mask: Mask,
}
