//! Memory layouts: tensors of attention heads, optional operands, and vectors of eight elements. Also the
//! index of the thread, without a register.
pub mod heads;
pub mod operand_kind;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod own_thread;
pub(crate) mod vec8;
