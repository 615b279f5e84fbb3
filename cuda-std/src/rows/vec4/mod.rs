//! Rows that threads read and write as vec4s: four contiguous elements, whatever their type.
//!
//! A vec4 has 8 bytes for a 16-bit type and 16 bytes for f32. Operands of different types therefore use the
//! same mapping of columns to threads. A warp processes a row: lane `l` has the four columns from `4 * (l +
//! 32 * tile)` on.
//!
//! torch's row kernels read rows in the same order. An op that must reproduce their bits needs this order.
//! The number of threads is a constant, so the addresses of tiles differ by constants.
//!
//! An [`Access`] type only says how the columns are read. The bits of a result do not depend on the alignment
//! of the row.
mod access;
mod columns;
mod row;
pub mod shared_row;
mod vector;

pub use access::*;
pub use columns::*;
pub use row::*;
pub use vector::*;
