//! Kernel argument and sizes of the split-KV decoding kernels ([`decode`](crate::attention::decode)).
use crate::attention::mma::params::{AttentionParams, WARPS};

/// Keys per split. Each block processes one split of the keys.
pub const SPLIT: u32 = 512;
/// Largest number of rows per block. A row is one query of one query head. All query heads of a block share
/// one key head (GQA).
pub const ROWS: u32 = 16;
/// Keys per tile. In each step, a block processes one tile of keys, and each of its warps processes 16 keys.
pub(crate) const KEYS: u32 = 16 * WARPS;

/// The kernel argument of the two split-KV decoding kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DecodeParams {
    /// Parameters of the attention forward pass. The decoding kernels support neither a mask, nor a softcap,
    /// nor packed sequences (several sequences in one tensor). The field `tiles` is the number of row tiles
    /// per key head. A row tile has [`ROWS`] rows.
    pub forward: AttentionParams,
    /// Number of splits of the keys.
    pub splits: u32,
    /// Normalized attention output of each split of the keys, in f32, with the shape
    /// `[row tiles, splits, ROWS, dim]`. The [`ROWS`] rows of a row tile belong to one key head of one batch.
    pub partial: *mut f32,
    /// Natural log-sum-exp of each row's scores in each split of the keys, in f32, with the shape
    /// `[row tiles, splits, ROWS]`. A row tile has [`ROWS`] rows.
    pub partial_lse: *mut f32,
}

/// Returns the bytes of shared memory per block, for a head dimension of at most `16 * dim16`.
pub const fn shared_bytes(dim16: usize) -> u32 {
    (ROWS + 4 * KEYS) * (2 * dim16 as u32 + 1) * 16
}
