//! Matrix products for Hopper (sm_90a), with `wgmma` and TMA.
//!
//! The kernels compute `y = epilogue(x wᵀ + bias)`. A block has one producer warpgroup, which loads tiles of
//! `x` and `w` into a ring of buffers in shared memory. Its two or three consumer warpgroups multiply these
//! tiles. A block computes several tiles of `y`, one after the other.
//!
//! - `params`, `shape`: tile sizes ([`GemmTile`](params::GemmTile)), kernel argument and kernel types.
//! - `layout`: buffers and mbarriers in shared memory.
//! - `entries`: the macro that declares the kernels of an op.
//! - `kernel`: the body of the kernels, which assigns the roles to the warpgroups.
//! - `schedule`: the order in which the blocks compute the tiles of `y`.
//! - `producer`, `consumer`, `operand`, `fragments`, `output`, `output_transposed`: the code of the
//!   warpgroups.
pub(crate) mod consumer;
pub(crate) mod entries;
pub(crate) mod fragments;
pub(crate) mod kernel;
pub(crate) mod layout;
pub(crate) mod operand;
pub(crate) mod output;
pub(crate) mod output_transposed;
pub mod params;
pub(crate) mod producer;
pub(crate) mod schedule;
pub(crate) mod shape;
