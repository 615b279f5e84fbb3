//! Rows of tensors. A team is a group of threads that share one row. Each thread reads and writes the row in
//! packs (16-byte vectors) or vec4s (vectors of four elements).
pub mod pack;
pub mod row;
pub mod team;
pub mod vec4;
