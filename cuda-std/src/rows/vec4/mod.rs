//! Rows that threads read and write as vec4s. A vec4 is a vector of four contiguous elements of any type.
//!
//! A vec4 has 8 bytes for a 16-bit type and 16 bytes for f32. A thread therefore accesses the same columns in
//! operands of different types. If a warp processes a row, the row is divided into tiles of 128 columns. In
//! tile number `tile`, lane `l` accesses the four columns from `4 * (l + 32 * tile)` on.
//!
//! torch's row kernels read rows in the same order. An operator needs this order if its results must equal
//! torch's results bit for bit. Because the number of threads is a constant, the addresses of a thread's
//! tiles differ only by constants.
//!
//! A type that implements [`Access`] only says how the columns are read, for example one element or four
//! elements per access. The bits of a result therefore do not depend on the alignment of the row.
mod access;
mod columns;
mod row;
pub mod shared_row;
mod vector;

pub use access::*;
pub use columns::*;
pub use row::*;
pub use vector::*;
