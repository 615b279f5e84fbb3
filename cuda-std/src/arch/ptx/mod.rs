//! The PTX backend. It contains all `asm!` blocks and NVPTX intrinsics of the project.
//!
//! Shuffles and barriers use LLVM's intrinsics, because LLVM treats these intrinsics as convergent
//! operations. Loads, stores and conversions use `asm!`. The PTX of a load or store then has exactly the
//! width and the cache hint that the source code names.
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
#[cfg(target_feature = "sm_90a")]
pub mod wgmma;
