//! Attention for Hopper, in pieces: for which sizes ([`Tiles`](params::Tiles)), where things lie (`layout`),
//! which tile comes when (`schedule`), who loads (`producer`) and who computes (`consumer`, `matmul`, `mask`,
//! `softmax`, `output`).
#[cfg(target_feature = "sm_90a")]
pub(crate) mod consumer;
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
