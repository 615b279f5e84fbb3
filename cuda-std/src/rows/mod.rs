//! Rows of tensors. A team (the threads that share one row) reads and writes its row. Each thread accesses
//! one vector at a time: a pack (16-byte vector) or a vec4 (vector of four elements).
pub mod pack;
pub mod row;
pub mod team;
pub mod vec4;
