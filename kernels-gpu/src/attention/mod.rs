//! Attention on tensor cores: with `mma.sync` on every GPU from sm_80 on (`mma`), with split keys for few
//! queries (`decode`), with `wgmma` on Hopper (`hopper`), and its gradients (`backward`).
pub mod backward;
pub mod decode;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub mod hopper;
pub mod mma;
