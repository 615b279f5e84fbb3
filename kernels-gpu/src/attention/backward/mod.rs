//! Gradients of attention, with the algorithm of FlashAttention-2 (arXiv:2307.08691).
//!
//! The formulas are `dV = Pᵀ dO`, `dS = P * (dO Vᵀ - delta)`, `dQ = scale dS K` and `dK = scale dSᵀ Q`. The
//! operator `*` multiplies element by element. The kernels recompute the attention probabilities `P` from the
//! scores and from `lse`, the log-sum-exp of the forward pass. For each query, `delta` is the sum of `dO * O`
//! over the columns.
//!
//! A block keeps one outer-loop tile and loops over inner-loop tiles:
//!
//! - If the rows of the outer-loop tile are queries, the rows of the inner-loop tiles are keys. The block
//!   computes `dQ`.
//! - If the rows of the outer-loop tile are keys, the rows of the inner-loop tiles are queries. The block
//!   computes `dK` and `dV`, summed over all query heads that share the key head (GQA).
//!
//! For each pair of tiles, two matrix multiplications give the scores and `dO Vᵀ`, the gradients of `P`. From
//! these results, the kernel computes `P` and `dS` if the outer-loop rows are queries. If these rows are
//! keys, it computes `Pᵀ` and `dSᵀ`. A third multiplication, with `dS` as A operand, gives `dQ`. For `dK` and
//! `dV`, two further multiplications have `dSᵀ` and `Pᵀ` as A operands.
//!
//! The kernels use no atomics, so the order of each sum is fixed, and results are reproducible bit for bit.
//! Without atomics, `dQ` needs a separate launch. `dQ` is a sum over all keys, but a block that computes `dK`
//! and `dV` has only some of the keys. The scores and the gradients of `P` are therefore computed twice: once
//! for `dQ`, and once for `dK` and `dV`. For head dimensions above 128, `dK` and `dV` are computed by two
//! separate launches, and each of them computes the scores again.
pub(crate) mod delta;
pub(crate) mod gradients;
mod inner_tile;
mod outer_tile;
pub mod params;
mod scores;
