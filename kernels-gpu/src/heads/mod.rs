//! Bodies of the kernels that normalise the heads of queries and keys, and rotate them by RoPE. The operators
//! `qk_norm_rope` and `rope` use these kernels.
//!
//! Each module assigns threads to heads in a different way:
//!
//! - `warp`, `warp_halves`, `warp_own_angles`: the lanes of a warp, or of a part of a warp, share a head.
//! - `block`, `block_registers`: a team (the threads that share a row) processes a row. A row is a long head,
//!   or all heads of a token if they are normalised together.
//! - `rope_only`: kernels without a norm. Each thread processes four columns of a query head and of a key
//!   head.
//! - `rope_in_place`: kernels without a norm, whose outputs may be their inputs.
//!
//! The module `rope_positions` chooses the rows of the tables of angles by the positions of the tokens.
pub(crate) mod block;
pub mod block_registers;
pub(crate) mod norm;
mod norm_halves;
pub mod params;
pub(crate) mod partition;
pub(crate) mod rms_norm;
mod rope;
mod rope_angles;
pub(crate) mod rope_in_place;
pub(crate) mod rope_only;
mod rope_pairs;
mod rope_positions;
mod subwarp;
pub(crate) mod warp;
pub(crate) mod warp_halves;
pub mod warp_own_angles;
