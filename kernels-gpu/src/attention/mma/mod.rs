//! Attention, `softmax(scale q kT + mask) v`, on tensor cores that any GPU from sm_80 on has:
//! FlashAttention-2 (arXiv:2307.08691).
//!
//! A block has four or eight warps and takes a tile of queries of one head. Keys and values go through shared
//! memory in tiles, of which one is copied while the other is worked on; a warp has all keys of its own
//! queries, so it never waits for another one but to share the copies. Scores and weights stay in registers:
//! the fragments of a product are those of the next.
//!
//! - Rows in shared memory lie 16 bytes further apart than they are long: an odd number of chunks, so that
//!   the eight rows of a matrix begin in different banks, at addresses that differ by constants.
//! - Exponents are taken against a row's largest score so far, so that the largest weight is exactly 1. Where
//!   none of a warp's rows has a larger one, the sums need no rescaling, which costs as many instructions as
//!   the exponentials. (A maximum that lags, as FlashAttention-4's, arXiv:2603.05451, saves more of it, but
//!   the largest weight is rounded too.)
//! - Tiles that all queries of a warp see go without comparisons; those that none sees, without anything.
mod copy_slices;
pub(crate) mod forward;
mod kv_tiles;
pub(crate) mod mask;
pub(crate) mod matmul;
pub(crate) mod output;
pub(crate) mod padding;
pub mod params;
pub(crate) mod q_fragments;
pub(crate) mod single_buffer;
pub(crate) mod softmax;
pub(crate) mod tile;
pub(crate) mod tile_coords;
pub mod tiling;
pub(crate) mod window;
