//! Matrix multiplication on tensor cores.
#[cfg(target_arch = "nvptx64")]
pub mod hopper;
pub mod mma;
pub mod tensor_map;
