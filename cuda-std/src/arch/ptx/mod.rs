//! The PTX backend: every `asm!` and every NVPTX intrinsic of the project.
//!
//! Exchange and barriers go through LLVM's intrinsics, which it knows to be convergent; loads, stores and
//! conversions are `asm!`, so that the width and the cache hint written here are what the GPU gets.
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
mod packed;
pub use packed::*;
mod sync;
pub use sync::*;
mod thread;
pub use thread::*;
pub mod wgmma;
