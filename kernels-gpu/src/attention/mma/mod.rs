//! Attention forward pass, `O = softmax(scale Q Kᵀ + mask) V`, with `mma.sync` on every GPU from sm_80 on.
//!
//! The algorithm is FlashAttention-2 (arXiv:2307.08691). A block has four or eight warps, and computes the
//! result for one tile of queries of one head. The block loads keys and values tile by tile into shared
//! memory. It copies the next tile while it computes on the current tile.
//!
//! Each warp processes all keys for its own queries, so the warps of a block synchronize only before a tile
//! in shared memory is overwritten. Scores and probabilities stay in registers: an accumulator fragment of
//! QKᵀ has the same register layout as an A fragment of PV.
//!
//! - Each row in shared memory is padded by 16 bytes, so the distance between rows is an odd number of
//!   16-byte chunks. The eight rows of an `ldmatrix` matrix therefore start in different banks.
//! - The kernels subtract the largest score of the row so far before the exponential, so the largest
//!   probability is exactly 1. If no row maximum in a warp rises, the warp skips the rescaling of its
//!   accumulator. The rescaling would take as many instructions as the exponentials.
//! - FlashAttention-4 (arXiv:2603.05451) skips rescaling more often, because it updates the maximum late.
//!   These kernels update the maximum for every key tile. With late updates, the largest probability of a row
//!   could differ from 1, and its conversion to 16 bits could round it. The value 1 converts exactly.
//! - A warp skips a key tile if none of its queries attends to a key of the tile. If all of its queries
//!   attend to all keys of the tile, the warp omits the mask comparisons.
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
