//! Devices, inputs and error bounds for the tests of all kernels.
#![allow(dead_code)] // Each test file uses a part of this module.
use oxiwarp_runtime::{Device, Dtype, Element, Error, Result};

/// Largest relative error of one rounding to f32: half a unit in the last place (2^-24).
pub const U: f64 = f32::EPSILON as f64 / 2.0;

/// Returns the CPU executor and, if there is one, a GPU.
pub fn devices() -> impl Iterator<Item = Device> {
    [Some(Device::cpu()), Device::cuda(0).ok()].into_iter().flatten()
}

/// Returns `len` pseudo-random values from -`range` to `range`. The values depend on `seed`.
pub fn values<T: Element>(len: usize, seed: u32, range: f32) -> Vec<T> {
    let random = |i: u32| (i.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
    (0..len as u32).map(|i| T::from_f32(range * random(i))).collect()
}

/// Returns an upper bound of the absolute error of rounding `value` to `T`, for normal and subnormal results.
pub fn rounding<T: Element>(value: f64) -> f64 {
    let (relative, smallest) = match T::DTYPE {
        Dtype::F16 => (2.0_f64.powi(-11), 2.0_f64.powi(-25)),
        Dtype::Bf16 => (2.0_f64.powi(-8), 2.0_f64.powi(-134)),
        _ => (0.0, 0.0), // Kernels compute in f32, so the last step does not round.
    };
    (relative * value.abs()).max(smallest)
}

pub fn f64_of<T: Element>(value: T) -> f64 {
    value.to_f32().into()
}

/// Checks that a call succeeded. If the call failed, panics with the error message that a user sees.
pub fn succeeds(done: Result<()>) {
    done.unwrap_or_else(|error| panic!("{error}"));
}

/// Checks that a call failed with the error message `message`.
pub fn fails(done: Result<()>, message: &str) {
    assert_eq!(done.map_err(|error: Error| error.to_string()), Err(message.into()));
}
