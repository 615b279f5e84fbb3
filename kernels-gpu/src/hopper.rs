//! Attention for Hopper, in pieces: where things lie ([`layout`]), which tile comes when ([`schedule`]), who loads
//! ([`producer`]) and who computes ([`consumer`], [`softmax`], [`output`]).
#[cfg(target_feature = "sm_90a")]
pub(crate) mod consumer;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod layout;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod output;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod producer;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod schedule;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod shape;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod softmax;

use core::num::NonZero;

/// What the kernels need to know beside the tensor maps of q, k and v.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
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
    /// Causal: query `i` sees keys up to `i + diagonal`.
    pub diagonal: i32,
    /// Of scores, times log2(e).
    pub scale: f32,
}
