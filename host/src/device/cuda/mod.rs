//! GPUs through the CUDA driver: primary contexts shared with torch, modules loaded at the first launch,
//! and launches on raw streams.
//!
//! `cust` provides the driver binding and its constants. [`sys`] declares the driver calls with integer
//! results.
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
