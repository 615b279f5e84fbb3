//! Rows of tensors: teams (the threads that share a row), packs and vec4s (the vectors that a thread reads
//! and writes).
pub mod pack;
pub mod row;
pub mod team;
pub mod vec4;
