//! Attention for few queries and many keys, with split-KV decoding ("Flash-Decoding").
//!
//! The keys are divided into splits of [`SPLIT`](params::SPLIT) keys. Each block processes one split, and
//! each of its four warps processes a quarter of the keys of this split. A second kernel combines the results
//! of all splits.
//!
//! In grouped-query attention (GQA), several query heads share a key head. A block treats the queries of
//! these heads as the rows of one matrix. The block therefore reads each key and value only once for up to
//! [`ROWS`](params::ROWS) rows. Every split has the same fixed size, so the order of the sums does not depend
//! on the batch size. The result of a query is therefore the same for every batch size.
pub mod combine;
pub mod params;
mod partial;
pub(crate) mod split;
