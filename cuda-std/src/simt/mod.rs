//! The CUDA execution model: threads, warps, blocks, clusters, and the memory that they access.
pub mod block;
pub mod cluster;
pub mod copy;
pub mod l2;
pub mod mem;
pub mod shared;
pub mod thread;
pub mod warp;
