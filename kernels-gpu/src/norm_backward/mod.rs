//! The gradients of RMSNorm and LayerNorm.
//!
//! A constant `offset` is added to the weight `w`. With `d = x - mean` (RMSNorm: `d = x`),
//! `r = 1 / sqrt(mean(d^2) + eps)` and `g = dy * (offset + w)`:
//!
//! - `dx = r * (g - mean(g) - d * r^2 * mean(g * d))`, for RMSNorm without `mean(g)`;
//! - `dw = sum of dy * d * r` over the rows that share the weight, and `db = sum of dy`.
//!
//! A group is the set of rows that share a weight. Each group has `splits` blocks, and a block processes
//! every `splits`-th batch of rows. The block accumulates its partial sums of `dw` and `db` while it computes
//! `dx`, and writes them to a workspace as one row of f32. A second kernel, [`column_sums`], adds the rows of
//! the workspace.
//!
//! The kernels use no atomic additions, so the order of each sum depends only on the launch configuration.
//! The forward pass saves no statistics, so these kernels compute mean and `r` again.
mod block_reduce;
mod block_sums;
pub mod column_sums;
pub(crate) mod gradients;
mod multi_row;
pub mod params;
mod prefetch;
mod row_pass;
