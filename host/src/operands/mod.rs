//! The operands of ops: their checks, and the kernel arguments made of them.
pub(crate) mod attention;
pub(crate) mod attention_checks;
pub(crate) mod heads;
pub(crate) mod modulation;
pub(crate) mod rope;
pub(crate) mod rows;
