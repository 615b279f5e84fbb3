//! Attention kernels for Hopper (sm_90a), with `wgmma` and TMA.
//!
//! In a block, one warpgroup (the producer) loads tiles of queries, keys and values. Two or three other
//! warpgroups (the consumers) compute attention.
//!
//! - `params`, `shape`: tile sizes ([`Tiles`](params::Tiles)), kernel argument and kernel types.
//! - `layout`: regions and mbarriers in shared memory.
//! - `kernel`: the body of the kernels, which assigns the roles to the warpgroups.
//! - `schedule`: the order in which a block processes query tiles.
//! - `producer`: the code of the producer warpgroup.
//! - `consumer`, `matmul`, `mask`, `softmax`, `output`: the code of the consumer warpgroups.
#[cfg(target_feature = "sm_90a")]
pub(crate) mod consumer;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod kernel;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod layout;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod mask;
#[cfg(target_feature = "sm_90a")]
mod matmul;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod output;
#[cfg(target_feature = "sm_90a")]
mod own_thread;
pub mod params;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod producer;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod schedule;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod shape;
#[cfg(target_feature = "sm_90a")]
pub(crate) mod softmax;
