//! Building blocks of softmax and cross-entropy: the online row reduction, and the class targets.
pub mod online;
pub mod target;
