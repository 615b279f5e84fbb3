//! RMSNorm of rows that a kernel reads in packs (16-byte vectors). The operators `rms_norm`, `add_rms_norm`
//! and `rms_norm_gated` share this code.
pub mod row;
pub mod weight;
