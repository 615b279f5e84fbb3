//! Element types of tensors, and f32 arithmetic.
pub mod elem;
pub mod fp8;
pub mod libdevice;
pub mod math;
pub mod trig;
