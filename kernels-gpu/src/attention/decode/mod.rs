//! Attention for few queries and many keys (split-KV decoding, "Flash-Decoding").
//!
//! The keys are divided into splits of [`SPLIT`](params::SPLIT) keys. Each block computes one split, and each
//! of its four warps a quarter of it. A second kernel combines the splits.
//!
//! Queries of all heads that share a key head (GQA) are rows of one matrix, so a block reads keys and values
//! once. The split size is constant. The result of a query therefore does not depend on the batch size.
pub mod combine;
pub mod params;
mod partial;
pub(crate) mod split;
