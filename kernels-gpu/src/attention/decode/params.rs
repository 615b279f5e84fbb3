//! What a launch of [`decode`](crate::attention::decode) works on, and its sizes.
use crate::attention::mma::params::{AttentionParams, WARPS};

/// Keys of a block.
pub const SPLIT: u32 = 512;
/// Rows of a block: queries of heads that share keys.
pub const ROWS: u32 = 16;
/// Keys that a block works on at a time, 16 for each warp.
pub(crate) const KEYS: u32 = 16 * WARPS;

/// What a launch works on: the kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DecodeParams {
    /// As for a launch of all keys, without mask, softcap and packed sequences; `tiles` are of [`ROWS`] rows.
    pub forward: AttentionParams,
    /// Blocks that share the keys.
    pub splits: u32,
    /// A result for each block and row: `[splits, ROWS, dim]`.
    pub partial: *mut f32,
    /// The logarithm of each one's sum of exponentials: `[splits, ROWS]`.
    pub partial_lse: *mut f32,
}

/// Shared memory of a block, in bytes.
pub const fn shared_bytes(dim16: usize) -> u32 {
    (ROWS + 4 * KEYS) * (2 * dim16 as u32 + 1) * 16
}
