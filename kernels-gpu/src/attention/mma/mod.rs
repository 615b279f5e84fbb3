//! Attention, `softmax(scale q kT + mask) v`, on tensor cores that any GPU from sm_80 on has: FlashAttention-2
//! (arXiv:2307.08691).
//!
//! A block has four or eight warps and takes a tile of queries of one head. Keys and values go through shared memory in
//! tiles, of which one is copied while the other is worked on; a warp has all keys of its own queries, so it never waits for
//! another one but to share the copies. Scores and weights stay in registers: the fragments of a product are those of the
//! next.
//!
//! - Rows in shared memory lie 16 bytes further apart than they are long: an odd number of chunks, so that the eight rows
//!   of a matrix begin in different banks, at addresses that differ by constants.
//! - Exponents are taken against a row's largest score so far, so that the largest weight is exactly 1. Where none of a
//!   warp's rows has a larger one, the sums need no rescaling, which costs as many instructions as the exponentials. (A
//!   maximum that lags, as FlashAttention-4's, arXiv:2603.05451, saves more of it, but the largest weight is rounded too.)
//! - Tiles that all queries of a warp see go without comparisons; those that none sees, without anything.
mod copy_slices;
pub(crate) mod forward;
mod kv_tiles;
pub(crate) mod mask;
pub(crate) mod matmul;
pub(crate) mod output;
pub(crate) mod padding;
pub(crate) mod q_fragments;
pub(crate) mod single_buffer;
pub(crate) mod softmax;
pub(crate) mod tile;
pub(crate) mod tile_coords;
pub(crate) mod window;

pub use mask::Mask;

use crate::layout::heads::Heads;

/// What a launch works on: the kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Queries.
    pub q: Heads,
    /// Keys.
    pub k: Heads,
    /// Values.
    pub v: Heads,
    /// The result, as `q`.
    pub out: Heads,
    /// `ln(sum(exp(scores)))` of each head and query; null: not wanted.
    pub lse: *mut f32,
    /// Where packed sequences begin among the queries, and end; null: batches of `queries` queries.
    pub query_starts: *const i32,
    /// Likewise among the keys.
    pub key_starts: *const i32,
    /// What is added to the scores, or hides them: in the general kernels.
    pub mask: Mask,
    /// Batches, or packed sequences.
    pub batches: u32,
    /// Queries of a batch, or of all packed sequences.
    pub queries: u32,
    /// Keys, likewise.
    pub keys: u32,
    /// Heads of the queries.
    pub heads: u32,
    /// Heads of the queries that share one of the keys.
    pub group: u32,
    /// Columns of a head.
    pub dim: u32,
    /// Query tiles of a batch, or of all sequences.
    pub tiles: u32,
    /// Are all heads readable 16 bytes at a time? What is not, the general kernels read element by element.
    pub vector: u32,
    /// Are later queries longer work than earlier ones? They are then begun first.
    pub backwards: u32,
    /// The most keys before its position that a query sees.
    pub before: i32,
    /// The most keys after it.
    pub after: i32,
    /// The factor of `q k`; above 0 except in the general kernels.
    pub scale: f32,
    /// Scores become `softcap tanh(score / softcap)` unless it is 0: in the general kernels.
    pub softcap: f32,
}

/// More than there are keys: no limit to a window.
pub const UNLIMITED: i32 = 1 << 30;

/// Shared memory that a block may have on every GPU from sm_80 on: sm_86, sm_89 and sm_120 have the least.
pub const SHARED_BYTES_EVERYWHERE: u32 = 99 << 10;

/// Warps in a block of the kernels of [`decode`](super::decode).
pub const WARPS: u32 = 4;

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
    /// Tiles of keys, and of values, that there is room for: two, of which one is copied while the other is worked on; or one,
    /// and values are copied between the products with keys, the next keys between those with values.
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
    /// Shared memory of a block, in bytes: a tile of queries, those of keys and values, and, where these are one each, what
    /// else the block keeps there.
    pub const fn shared_bytes(&self) -> u32 {
        let rows = self.rows() + 2 * self.buffers * 16 * self.cols16 as u32;
        rows * (2 * self.dim16 as u32 + 1) * 16
            + if self.buffers == 1 { single_buffer::KEPT_BYTES } else { 0 }
    }
}
