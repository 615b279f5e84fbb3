//! Benchmarks of every op on a GPU: the table of cases, and what `bench`, `tune` and criterion measure them with.
pub mod cases;
mod gpu;
pub mod report;
pub mod tune;

pub use gpu::{FLUSH_BYTES, Gpu, LAUNCHES};

/// The exit code of a benchmark that finds no GPU.
pub const NO_GPU: u8 = 2;
