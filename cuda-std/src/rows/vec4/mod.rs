//! Rows that threads read and write as vec4s. A vec4 is a vector of four contiguous elements of any type.
//!
//! A vec4 has 8 bytes for a 16-bit type and 16 bytes for f32. A thread can therefore access the same columns
//! in operands of different types. A row is divided into tiles of 128 columns. If one warp processes a row,
//! lane `l` accesses the four columns from `4 * (l + 32 * tile)` on in tile number `tile`.
//!
//! torch's row kernels assign columns to threads in the same way, and therefore add the elements of a row in
//! the same order. An operator needs this order if its results must have the same bits as torch's results.
//! Because the number of threads per row is a constant, the addresses of a thread's vec4s differ only by
//! constants.
//!
//! A type that implements [`Access`] determines how a thread reads its columns, for example with one or four
//! elements per access. It does not change which columns a thread reads. The bits of a result therefore do
//! not depend on the alignment of the row.
mod access;
mod columns;
mod row;
pub mod shared_row;
mod vector;

pub use access::*;
pub use columns::*;
pub use row::*;
pub use vector::*;
