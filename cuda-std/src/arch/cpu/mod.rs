//! The CPU executor's implementation of [`arch`](crate::arch). Its functions have the same names as the PTX
//! versions in `arch/ptx`.
//!
//! IEEE operations (`fma`, `sqrt`, conversions) return the same bits as the GPU, except NaN results. The
//! approximate instructions `ex2`, `rcp` and `rsqrt`, and matrix multiplications, return the bits of a Hopper
//! GPU. `tanh` returns the correctly rounded result.
//! A conversion to f16 or bf16 converts every NaN to 0x7FFF, as `cvt.rn` does. If an arithmetic operation
//! (`+`, `*`, `fma`) returns a NaN, the bits of the NaN depend on the host CPU.
mod cluster;
pub use cluster::*;
mod convert;
pub use convert::*;
mod copy;
pub use copy::*;
pub mod hopper;
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
pub mod wgmma;

#[cfg(test)]
mod tests;
