//! What the tests of all kernels share: devices, shapes, random tensors, comparison.
pub mod alone;
pub mod approx;
pub mod compare;
pub mod devices;
pub mod operand;
pub mod shapes;
pub mod tensor;
