//! Memory layouts of tensors of attention heads, of optional operands, and of vectors of eight elements. The
//! module `own_thread` reads the index of the thread without keeping it in a register.
pub mod heads;
pub mod operand_kind;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub(crate) mod own_thread;
pub(crate) mod vec8;
