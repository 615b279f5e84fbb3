//! Attention forward pass, `O = softmax(scale Q Kᵀ + mask) V`, with `mma.sync` on every GPU from sm_80 on.
//!
//! The algorithm is FlashAttention-2 (arXiv:2307.08691). A block has four or eight warps and computes a tile
//! of queries of one head. Keys and values pass through shared memory in tiles. The block copies one tile
//! while it computes on the previous tile.
//!
//! Each warp processes all keys for its own queries, so the warps of a block synchronize only to share the
//! tiles in shared memory. Scores and probabilities stay in registers: the accumulator fragments of QKᵀ are
//! the A fragments of PV.
//!
//! - Each row in shared memory is padded by 16 bytes. Its pitch is an odd number of 16-byte chunks, so the
//!   eight rows of an `ldmatrix` matrix start in different banks.
//! - Exponents are relative to the largest score of the row so far, so the largest probability is exactly 1.
//!   If no row maximum in a warp rises, the warp skips the rescaling of its accumulator. This saves as many
//!   instructions as the exponentials take.
//! - FlashAttention-4 (arXiv:2603.05451) skips rescaling more often, because it updates the maximum late.
//!   These kernels update the maximum for every key tile. A late update would leave a largest probability
//!   other than 1, which is then rounded.
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
