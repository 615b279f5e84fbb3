//! The operands of ops: checks, and conversion to kernel arguments.
pub(crate) mod attention;
pub(crate) mod attention_checks;
pub(crate) mod attention_layout;
pub(crate) mod heads;
pub(crate) mod matrix;
pub(crate) mod mixed;
pub(crate) mod modulation;
pub(crate) mod numbers;
pub(crate) mod overlap;
pub(crate) mod product;
pub(crate) mod rope;
pub(crate) mod rows;
