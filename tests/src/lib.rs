//! What the tests of all kernels share: devices, shapes, random tensors, comparison.
pub mod compare;
pub mod devices;
pub mod shapes;
pub mod tensor;
