//! Attention kernels that use tensor cores.
//!
//! - `mma`: forward pass with `mma.sync`, on every GPU from sm_80 on.
//! - `decode`: forward pass for few queries, with the keys split among blocks (split-KV decoding).
//! - `hopper`: forward pass with `wgmma`, on Hopper.
//! - `backward`: gradients of queries, keys and values.
pub mod backward;
pub mod decode;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub mod hopper;
pub mod mma;
