//! The type of a tensor map, which describes a tensor in global memory to the TMA unit.
pub use crate::base::tensor_map::TensorMap;
