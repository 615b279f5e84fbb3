//! Softmax and cross-entropy: the online reduction of a row, and the target classes.
pub mod online;
pub mod target;
