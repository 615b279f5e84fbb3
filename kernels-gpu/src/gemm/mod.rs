//! Matrix products `y = epilogue(x wᵀ + bias)`.
//!
//! - `epilogue`: the computations between the accumulators of `x wᵀ` and the stores of the result.
//! - `hopper`: kernels with `wgmma` and TMA, for Hopper.
//! - `mma`: kernels with `mma.sync`, for every GPU from sm_80 on.
//! - `tile_order`: the order in which the blocks compute the tiles of the result.
pub mod epilogue;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub mod hopper;
#[cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod mma;
pub mod tile_order;
