//! The sizes of the kernels for Hopper, and what a launch works on.
use core::num::NonZero;

use crate::attention::mma::params::Mask;

/// Queries of a warp group: the rows of a product.
pub const GROUP_ROWS: u32 = 64;
/// Those of a warp, which stores them.
pub const WARP_ROWS: u32 = 16;
/// Columns of the parts in which tiles lie in shared memory: what the swizzle takes.
pub const PART: u32 = 64;

/// The sizes of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    /// The most columns of a head.
    pub dim: u32,
    /// Keys of a tile.
    pub keys: u32,
    /// Warp groups that compute, of 64 queries each; one more loads.
    pub groups: u32,
    /// Tiles of keys, and as many of values, in flight.
    pub stages: u32,
    /// Does the copy engine store the result, from a place of its own in shared memory? Threads do where that
    /// takes as long or less: with few columns or few keys, for which more shared memory makes a launch
    /// slower, and with 256 columns, where none is left.
    pub staged: bool,
}

/// Heads of up to 64 columns. Three warp groups leave each 160 registers, of which 128 hold scores, weights
/// and result; two with longer tiles are 10 % slower, for the weights take as long as the products.
pub const D64: Tiles = Tiles { dim: 64, keys: 128, groups: 3, stages: 2, staged: false };
/// Heads of up to 96 columns.
pub const D96: Tiles = Tiles { dim: 96, keys: 144, groups: 2, stages: 2, staged: true };
/// Heads of up to 128 columns.
pub const D128: Tiles = Tiles { dim: 128, keys: 144, groups: 2, stages: 2, staged: true };
/// The same for keys that leave less of its last tile empty.
pub const D128_EVEN: Tiles = Tiles { keys: 128, staged: false, ..D128 };
/// Heads of up to 256 columns: shared memory is full with these.
pub const D256: Tiles = Tiles { dim: 256, keys: 80, groups: 2, stages: 2, staged: false };

impl Tiles {
    /// Queries of a tile.
    pub const fn rows(&self) -> u32 {
        self.groups * GROUP_ROWS
    }

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        (self.groups + 1) * 128
    }

    /// Bytes of shared memory: the tiles, a number for each key of those in flight, two barriers of 8 bytes
    /// for each of these, and what aligns the first to 1024.
    pub const fn shared_bytes(&self) -> u32 {
        let columns = self.dim.div_ceil(PART) * PART;
        let results = if self.staged { self.rows() } else { 0 };
        let tiles = (self.rows() + results + 2 * self.stages * self.keys) * columns * 2;
        tiles + self.stages * self.keys * 4 + (1 + 3 * self.stages) * 16 + 1024
    }
}

/// What the kernels need to know beside the tensor maps of q, k, v and the result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HopperParams {
    /// The result.
    pub out: *mut u8,
    /// f32, `[B, H, Sq]`; null: not wanted.
    pub lse: *mut f32,
    /// Bytes from a batch, query and head of the result to the next.
    pub out_strides: [i64; 3],
    /// Queries of a batch.
    pub queries: u32,
    /// Keys of a batch.
    pub keys: u32,
    /// Heads of the queries.
    pub heads: NonZero<u32>,
    /// Query heads that share a key head.
    pub shared_by: NonZero<u32>,
    /// Tiles of queries of a head.
    pub query_tiles: NonZero<u32>,
    /// Tiles in all.
    pub tiles: u32,
    /// Causal: heads whose tiles are worked on at a time, a divisor of batches times heads.
    pub section: NonZero<u32>,
    /// Tiles of these.
    pub section_tiles: NonZero<u32>,
    /// Columns of a head, a multiple of 8.
    pub dim: u32,
    /// Causal: query `i` sees keys up to `i + diagonal`.
    pub diagonal: i32,
    /// Of scores, times log2(e).
    pub scale: f32,
    /// 1 / scale, without that log2(e).
    pub unscale: f32,
    /// Padded: what is added to the scores; it does not depend on the query.
    pub mask: Mask,
}
