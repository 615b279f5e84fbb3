//! Tests of devices and of launch configurations, and properties that hold for random tensors.
pub(crate) mod gpu;
pub(crate) mod properties;
pub(crate) mod rungs;
