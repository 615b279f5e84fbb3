//! f32 arithmetic on the CPU executor.
pub use crate::cpu::approximate::{ex2, ex2_ftz, lg2, rcp, rcp_ftz, rsqrt};

#[inline]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

#[inline]
pub fn sqrt(x: f32) -> f32 {
    x.sqrt()
}

/// Emulates `tanh.approx.f32`, whose relative error is at most 2^-11, by the correctly rounded result.
#[inline]
pub fn tanh(x: f32) -> f32 {
    libm::tanh(f64::from(x)) as f32
}

/// Emulates `fma.rn.sat.f32`, which clamps the result to the range from 0 to 1 and returns 0 for a NaN.
#[inline]
pub fn fma_sat(a: f32, b: f32, c: f32) -> f32 {
    let value = fma(a, b, c);
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
}

/// Emulates `fma.rm.f32`, which rounds towards negative infinity.
#[inline]
pub fn fma_rm(a: f32, b: f32, c: f32) -> f32 {
    // In f64, the product is exact, but the addition of `c` may round. `sum` is the rounded sum, and `lost`
    // is what the exact sum has in addition to `sum`. `nearest` is `sum`, rounded to f32. If `nearest` is
    // above the exact sum, the result is the next lower f32. If `nearest` equals `sum`, it is above the exact
    // sum only if `lost` is negative.
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let lost = (product - (sum - (sum - product))) + (c - (sum - product));
    let nearest = sum as f32;
    let above = f64::from(nearest) > sum || f64::from(nearest) == sum && lost < 0.0;
    if above { nearest.next_down() } else { nearest }
}
