//! RMSNorm over rows that are read in 16-byte packs: `rms_norm`, `add_rms_norm` and `rms_norm_gated`.
pub mod row;
pub mod weight;
