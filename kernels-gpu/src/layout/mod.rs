//! Memory layouts: tensors of attention heads, optional operands, and vectors of eight elements.
pub mod heads;
pub mod operand_kind;
pub(crate) mod vec8;
