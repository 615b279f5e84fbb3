//! GPU benchmarks of every op: the table of cases, and the measuring code of `bench`, `tune` and criterion.
pub mod cases;
mod gpu;
pub mod report;
pub mod tune;

pub use gpu::{FLUSH_BYTES, Gpu, LAUNCHES};

/// The exit code of a benchmark that finds no GPU.
pub const NO_GPU: u8 = 2;
