//! GPU benchmarks of every op: the table of measured ops and sizes, and the timing code of the programs
//! `bench`, `tune` and the criterion benchmarks.
pub mod cases;
mod gpu;
pub mod group;
pub mod report;
pub mod tune;

pub use gpu::{FLUSH_BYTES, Gpu, LAUNCHES};

/// The exit code of a benchmark that finds no GPU.
pub const NO_GPU: u8 = 2;
