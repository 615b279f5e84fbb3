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
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod consumer;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod kernel;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod layout;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod mask;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
mod matmul;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod output;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub mod params;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod producer;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod schedule;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod shape;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod softmax;
