//! The gradients of RMSNorm and LayerNorm.
//!
//! With `d = x - mean` (RMSNorm: `d = x`), `r = 1 / sqrt(mean(d^2) + eps)` and `g = dy * (offset + w)`:
//!
//! - `dx = r * (g - mean(g) - d * r^2 * mean(g * d))`, for RMSNorm without `mean(g)`;
//! - `dw = sum of dy * d * r` over the rows that share the weight, and `db = sum of dy`.
//!
//! A block takes every `splits`-th batch of rows of a group and adds its share of `dw` and `db` up as it
//! goes, in the registers that stay with the columns; then it writes them as one row of f32, and
//! [`column_sums`] adds those rows. So the order of every sum is that of the launch, and nothing is kept from
//! the forward.
mod block_reduce;
mod block_sums;
pub mod column_sums;
pub(crate) mod gradients;
mod multi_row;
pub mod params;
mod prefetch;
mod row_pass;
