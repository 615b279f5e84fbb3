//! Matrix multiplication on tensor cores.
pub mod hopper;
pub mod mma;
pub mod tensor_map;
