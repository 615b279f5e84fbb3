//! Kernels on the heads of queries and keys, which normalise and rotate them: `qk_norm_rope` and `rope`.
pub(crate) mod block;
pub mod block_registers;
pub(crate) mod norm;
mod norm_halves;
pub mod params;
mod partition;
pub(crate) mod rms_norm;
mod rope;
mod rope_angles;
pub(crate) mod rope_only;
mod rope_pairs;
mod subwarp;
pub(crate) mod warp;
pub(crate) mod warp_halves;
pub mod warp_own_angles;
