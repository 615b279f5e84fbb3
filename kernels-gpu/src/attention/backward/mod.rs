//! Gradients: `dv = pT do`, `ds = p * (do vT - delta)`, `dq = scale ds k`, `dk = scale dsT q`, with the
//! weights `p` worked out again from the scores and `lse`, and `delta` the sum of `do * out` over a query's
//! columns (arXiv:2307.08691).
//!
//! A block has the rows of one side, queries or keys, and goes over the tiles of the other: with queries it
//! gets `dq`, with keys `dk` and `dv`, of all heads that share them. Both multiply the same way, so there is
//! one kernel: two products give scores and gradients of weights, from which come the left matrices of one or
//! two more. No atomics: the sums have one order, and the same bits every time. It costs two products more
//! than a kernel for both sides would need.
pub(crate) mod delta;
pub(crate) mod gradients;
mod inner_tile;
mod outer_tile;
pub mod params;
mod scores;
