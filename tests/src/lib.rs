//! What the tests of all kernels share: devices, shapes, random tensors, comparison.
pub mod alone;
pub mod approx;
pub mod compare;
pub mod devices;
mod docs;
pub mod operand;
pub mod shapes;
pub mod tensor;
