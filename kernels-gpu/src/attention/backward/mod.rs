//! Gradients: `dv = pT do`, `ds = p * (do vT - delta)`, `dq = scale ds k`, `dk = scale dsT q`, with the weights `p` worked
//! out again from the scores and `lse`, and `delta` the sum of `do * out` over a query's columns (arXiv:2307.08691).
//!
//! A block has the rows of one side, queries or keys, and goes over the tiles of the other: with queries it gets `dq`, with
//! keys `dk` and `dv`, of all heads that share them. Both multiply the same way, so there is one kernel: two products give
//! scores and gradients of weights, from which come the left matrices of one or two more. No atomics: the sums have one
//! order, and the same bits every time. It costs two products more than a kernel for both sides would need.
pub(crate) mod delta;
pub(crate) mod gradients;
mod inner_tile;
mod outer_tile;
mod scores;

use super::mma::{Params, Tiling};
use crate::layout::heads::Heads;

/// What a launch works on: the kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BackwardParams {
    /// The forward launch's, with its results; `tiles` are those of the side whose gradients are wanted.
    pub forward: Params,
    /// The gradient of the result.
    pub dout: Heads,
    /// Those of queries, keys and values.
    pub dq: Heads,
    /// As `k`.
    pub dk: Heads,
    /// As `v`.
    pub dv: Heads,
    /// The sum of `dout * out` over the columns, as `lse`.
    pub delta: *mut f32,
    /// May all heads be accessed 16 bytes at a time?
    pub vector: u32,
}

/// Threads of a block of `_delta`.
pub const DELTA_THREADS: u32 = 128;
/// Queries of a block of `_delta`.
pub const DELTA_ROWS: u32 = 64;

/// Shared memory of a block, in bytes: two tiles of its rows, two buffers of two tiles of the other side's, and of two
/// numbers for each of these rows.
pub const fn shared_bytes(tiling: &Tiling) -> u32 {
    let cols = 16 * tiling.cols16 as u32;
    (2 * tiling.rows() + 4 * cols) * (2 * tiling.dim16 as u32 + 1) * 16 + 4 * cols * 4
}
