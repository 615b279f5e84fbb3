//! Items that both backends of [`arch`](crate::arch), PTX and CPU, use.
pub mod cache;
// Used on the CPU and before sm_80. GPUs from sm_80 on have the instructions `max.f16x2` and `max.bf16x2`.
#[allow(dead_code, reason = "not used where the architecture has the instructions")]
pub(crate) mod halves;
