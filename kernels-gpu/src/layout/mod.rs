//! Layouts in memory: tensors of attention heads, and vectors of eight elements.
pub mod heads;
pub mod operand_kind;
pub(crate) mod vec8;
