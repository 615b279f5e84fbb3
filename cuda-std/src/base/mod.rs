//! Items that both backends of [`arch`](crate::arch) use.
pub mod cache;
// GPUs from sm_80 on have `max.f16x2` and `max.bf16x2`.
#[allow(dead_code, reason = "not used where the architecture has the instructions")]
pub(crate) mod halves;
