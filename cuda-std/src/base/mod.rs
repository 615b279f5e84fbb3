//! Items that both backends of [`arch`](crate::arch), PTX and CPU, use.
pub mod cache;
pub(crate) mod fp8;
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) mod narrow;
pub mod tensor_map;
// Only the CPU backend and GPUs before sm_80 use this module. Newer GPUs have the instructions `max.f16x2`
// and `max.bf16x2`.
#[allow(dead_code, reason = "not used where the architecture has the instructions")]
pub(crate) mod halves;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod wgmma;
