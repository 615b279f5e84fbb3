//! RMSNorm of rows that are read in packs of 16 bytes: shared code of `rms_norm`, `add_rms_norm` and
//! `rms_norm_gated`.
pub mod row;
pub mod weight;
