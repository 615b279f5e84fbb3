//! The type of a tensor map, which describes a tensor in global memory to the TMA unit.

/// A `CUtensorMap` (128 bytes), which the CUDA driver creates and a kernel receives as an argument.
///
/// TMA reads the map from the memory that contains the kernel's arguments. A kernel therefore passes the
/// address of the argument to TMA and never copies the map.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct TensorMap(pub [u64; 16]);
