//! The functions of [`arch`](crate::arch) on the CPU executor: the same names and results as `arch/ptx`.
//!
//! IEEE operations (`fma`, `sqrt`, the conversions) give the same bits as the GPU. The approximate ones are
//! computed in f64 and rounded once, so they differ from the GPU by at most the bound of their PTX
//! instruction, written beside each. A conversion to f16 or bf16 turns every NaN into 0x7FFF, as `cvt.rn`
//! does; NaN bits that arithmetic makes (`+`, `*`, `fma`) are the host's and not promised.
mod cluster;
pub use cluster::*;
mod convert;
pub use convert::*;
mod copy;
pub use copy::*;
mod math;
pub use math::*;
mod memory;
pub use memory::*;
mod mma;
pub use mma::*;
mod sync;
pub use sync::*;
mod thread;
pub use thread::*;

#[cfg(test)]
mod tests;
