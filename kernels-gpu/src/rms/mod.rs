//! Code of the operators `rms_norm`, `add_rms_norm` and `rms_norm_gated`. Their kernels read rows in packs
//! (16-byte vectors).
pub mod row;
pub mod weight;
