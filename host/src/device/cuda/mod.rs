//! GPUs through the CUDA driver: primary contexts that torch also uses, PTX modules that are loaded at the
//! first launch, and launches on `CUstream` handles.
//!
//! The crate `cust` provides the driver symbols and constants. [`sys`] declares the driver functions again,
//! with an integer instead of a Rust enum as result.
mod context;
mod functions;
mod gpu;
mod graph;
mod memory;
mod sync;
mod sys;
mod tensor_map;

pub(crate) use context::{Cuda, count, describe};
pub(crate) use functions::OwnKernels;
pub use graph::{Event, Graph, OwnedStream};
pub(crate) use tensor_map::HeadsMap;
