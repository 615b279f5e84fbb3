//! Code that softmax and cross-entropy share: the online row reduction, and the target classes.
pub mod online;
pub mod target;
