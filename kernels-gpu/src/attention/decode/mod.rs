//! Few queries and many keys: each block has a part of the keys, and each of its warps a quarter of that; a
//! second kernel adds up what the blocks found (arXiv:2307.08691, "flash decoding").
//!
//! The queries of all heads that share keys are rows of one matrix, so that keys and values are read once.
//! Parts are of [`SPLIT`](params::SPLIT) keys whatever the launch: a query's result does not depend on the
//! batch.
pub mod combine;
pub mod params;
mod partial;
pub(crate) mod split;
