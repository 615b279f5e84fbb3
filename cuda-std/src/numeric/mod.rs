//! Element types and arithmetic.
pub mod elem;
pub mod libdevice;
pub mod math;
pub mod trig;
