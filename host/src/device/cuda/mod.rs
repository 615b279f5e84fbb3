//! A GPU: the primary context that torch shares, modules loaded when first launched, launches on raw streams.
//!
//! `cust` opens the driver and has its constants. The calls stand in [`sys`], with results as plain numbers.
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
