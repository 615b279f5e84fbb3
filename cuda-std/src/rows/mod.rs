//! Rows of tensors: the threads that share a row, and the vectors that they read and write.
pub mod pack;
pub mod row;
pub mod team;
pub mod vec4;
