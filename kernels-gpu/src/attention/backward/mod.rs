//! Gradients of attention (FlashAttention-2, arXiv:2307.08691).
//!
//! `dV = Pᵀ dO`, `dS = P * (dO Vᵀ - delta)`, `dQ = scale dS K`, `dK = scale dSᵀ Q`. The kernels recompute the
//! attention probabilities `P` from the scores and from `lse`, the log-sum-exp of the forward pass. For each
//! query, `delta` is the sum of `dO * O` over the columns.
//!
//! A block keeps one outer-loop tile and loops over inner-loop tiles:
//!
//! - If the outer-loop tile has queries, the inner-loop tiles have keys. The block computes `dQ`.
//! - If the outer-loop tile has keys, the inner-loop tiles have queries. The block computes `dK` and `dV`,
//!   summed over all query heads that share the key head (GQA).
//!
//! For each pair of tiles, two matrix multiplications give the scores and the gradients of `P`. From these
//! results the kernel computes `P` and `dS`. They are the A operands of one more multiplication for `dQ`, or
//! of two for `dK` and `dV`.
//!
//! The kernels use no atomics. The order of each sum is fixed, so results are reproducible bit for bit. The
//! price is that the scores and the gradients of `P` are computed twice: for `dQ`, and again for `dK` and
//! `dV`.
pub(crate) mod delta;
pub(crate) mod gradients;
mod inner_tile;
mod outer_tile;
pub mod params;
mod scores;
