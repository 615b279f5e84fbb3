//! Tests of `rope` and `qk_norm_rope`.
pub(crate) mod bad_input;
pub(crate) mod empty;
pub(crate) mod kernels;
pub(crate) mod qk_norm_rope;
pub(crate) mod rope;
