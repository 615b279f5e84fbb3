//! Shared code of all kernel tests: devices, shapes, random tensors, comparisons.
pub mod alone;
pub mod approx;
pub mod case;
pub mod compare;
pub mod devices;
mod docs;
pub mod operand;
pub mod shapes;
pub mod tensor;
