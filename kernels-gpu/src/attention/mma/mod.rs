//! Attention forward pass, `O = softmax(scale Q Kᵀ + mask) V`, with `mma.sync` on every GPU from sm_80 on.
//!
//! The algorithm is FlashAttention-2 (arXiv:2307.08691). A block has four or eight warps, and computes the
//! result for one tile of queries of one head. It loads keys and values tile by tile into shared memory, and
//! copies the next tile while it computes on the current tile.
//!
//! Each warp processes all keys for its own queries, so warps exchange no results. The warps of a block
//! synchronize only when a copied tile must be complete, or before a copy overwrites a tile. Scores and
//! probabilities stay in registers: an accumulator fragment of QKᵀ has the same register layout as an A
//! fragment of PV.
//!
//! - Each row of a tile in shared memory is padded by 16 bytes, so rows are an odd number of 16-byte chunks
//!   apart. The eight rows of an `ldmatrix` matrix (8 x 8) are therefore in different banks.
//! - Before the exponential, the kernels subtract the largest score of the row so far. The largest
//!   unnormalized probability of a row is therefore exactly 1. If no row maximum in a warp rises, the warp
//!   does not rescale its accumulator. Rescaling would take as many instructions as the exponentials.
//! - FlashAttention-4 (arXiv:2603.05451) rescales less often, because it ignores small rises of the maximum.
//!   The kernels in this module do not ignore them, so that the largest probability stays 1. The conversion
//!   to 16 bits rounds other values, but represents 1 exactly.
//! - A warp skips a key tile if none of the warp's queries attends to a key of the tile. If all of the warp's
//!   queries attend to all keys of the tile, the warp omits the comparisons that hide single keys.
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
