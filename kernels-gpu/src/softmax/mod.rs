//! Code that softmax and cross-entropy share: the online reduction of a row, and access to the target
//! classes and to the weights of the classes.
pub mod class_weights;
pub mod online;
pub mod softcap;
pub mod target;
