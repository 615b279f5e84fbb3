//! Cases, tensors and operands that several tests share.
pub(crate) mod attention_case;
pub(crate) mod heads;
pub(crate) mod modulations;
pub(crate) mod norm_backward_case;
