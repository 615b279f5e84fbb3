//! What both backends of [`arch`](crate::arch) use.
pub mod cache;
// On sm_80 and later there are instructions.
#[allow(dead_code, reason = "not used where the architecture has the instructions")]
pub(crate) mod halves;
