//! Tests of devices and launch configurations, and property tests with random tensors.
pub(crate) mod gpu;
pub(crate) mod properties;
pub(crate) mod rungs;
