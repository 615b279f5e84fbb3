//! Rows read and written four neighbouring elements at a time, whatever their type.
//!
//! A quad is 8 bytes of a 16-bit type and 16 of f32, so operands of different types share one mapping of
//! columns to threads. A warp has a row: lane `l` has the columns from `4 * (l + 32 * tile)` on. That is also
//! the order in which torch's own row kernels read, which an op needs that wants their bits; and the number
//! being a constant, tiles lie at constant distances.
//!
//! An [`Access`] says how the columns are read, and nothing else: a row's bits do not depend on its
//! alignment.
mod access;
mod columns;
mod row;
pub mod shared_row;
mod vector;

pub use access::*;
pub use columns::*;
pub use row::*;
pub use vector::*;
