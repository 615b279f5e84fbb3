//! The gradients of RMSNorm and LayerNorm.
//!
//! The forward pass multiplies a normalized row by `offset + w`. `w` is the weight, and `offset` is the same
//! number for all columns. The formulas use three abbreviations:
//!
//! - `d = x - mean(x)` for LayerNorm, and `d = x` for RMSNorm;
//! - `r = 1 / sqrt(mean(d^2) + eps)`;
//! - `g = dy * (offset + w)`.
//!
//! The gradients are:
//!
//! - `dx = r * (g - mean(g) - d * r^2 * mean(g * d))`; for RMSNorm, the term `mean(g)` is omitted;
//! - `dw`, the sum of `dy * d * r` over the rows that share the weight;
//! - `db`, the sum of `dy` over these rows.
//!
//! A group is the set of rows that share a weight. `splits` blocks process each group. The rows of a group
//! are divided into batches, and each of these blocks processes every `splits`-th batch. While a block
//! computes `dx`, it accumulates partial sums of `dw` and `db`. For each of these two gradients, the block
//! writes its sums to a workspace, as one row of f32. A second kernel, [`column_sums`], adds the rows of a
//! workspace.
//!
//! The kernels use no atomic additions, so the order of each sum depends only on the launch configuration.
//! The forward pass does not save `mean(x)` and `r`, so the backward kernels compute both again.
mod block_reduce;
pub(crate) mod block_sums;
pub mod column_sums;
pub(crate) mod gradients;
mod multi_row;
pub mod params;
mod prefetch;
mod row_pass;
