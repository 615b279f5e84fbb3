//! GPU access through the crate `cust`: contexts, modules, memory, events and streams. The contexts are
//! primary contexts, which torch also uses.
//!
//! [`raw`] declares the driver functions that `cust` lacks.
mod current;
mod gpu;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod raw;
mod stream;
mod sync;
mod tensor_map;

pub(crate) use gpu::{Gpu, count, describe, index_of};
pub(crate) use module::{Function, Module};
pub use stream::{Event, Graph, OwnedStream};
pub use tensor_map::HeadsMap;
pub(crate) use tensor_map::{encode, for_executor};
