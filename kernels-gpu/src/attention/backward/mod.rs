//! Gradients of attention (FlashAttention-2, arXiv:2307.08691).
//!
//! `dV = Pᵀ dO`, `dS = P * (dO Vᵀ - delta)`, `dQ = scale dS K`, `dK = scale dSᵀ Q`. The kernels recompute the
//! attention probabilities `P` from the scores and `lse`. `delta` is the sum of `dO * O` over the columns of
//! a query.
//!
//! One kernel serves queries and keys. A block keeps an outer-loop tile of one operand and loops over the
//! inner-loop tiles of the other. With queries as outer-loop tile it computes `dQ`. With keys it computes
//! `dK` and `dV`, summed over all heads of the group (GQA).
//!
//! In both cases, two matrix multiplications give the scores and the gradients of `P`. From these the kernel
//! computes `P` and `dS`, which are the A operands of one or two more multiplications.
//!
//! The kernels use no atomics. The order of each sum is fixed, so results are reproducible bit for bit. This
//! costs two matrix multiplications more per tile pair than a kernel that computes all three gradients.
pub(crate) mod delta;
pub(crate) mod gradients;
mod inner_tile;
mod outer_tile;
pub mod params;
mod scores;
