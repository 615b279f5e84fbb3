//! Code that softmax and cross-entropy share: the online reduction of a row, and access to the target
//! classes.
pub mod online;
pub mod softcap;
pub mod target;
