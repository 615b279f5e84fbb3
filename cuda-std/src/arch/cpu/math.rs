//! f32 arithmetic on the CPU executor, and correctly rounded versions of PTX's approximate functions.
//!
//! The comment on each approximate function states the error bound of the PTX instruction. The function
//! itself returns the correctly rounded result.

#[inline]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

#[inline]
pub fn sqrt(x: f32) -> f32 {
    x.sqrt()
}

/// Emulates `rsqrt.approx.f32`, whose relative error is at most 2^-22.9.
#[inline]
pub fn rsqrt(x: f32) -> f32 {
    (1.0 / f64::from(x).sqrt()) as f32
}

/// Emulates `rcp.approx.f32`, whose error is at most 1 ulp.
#[inline]
pub fn rcp(x: f32) -> f32 {
    1.0 / x
}

/// Emulates `ex2.approx.f32`, whose error is at most 2 ulp.
#[inline]
pub fn ex2(x: f32) -> f32 {
    libm::exp2(f64::from(x)) as f32
}

/// Emulates `lg2.approx.f32`. For arguments between 0.5 and 2, the absolute error of the instruction is at
/// most 2^-22. For other arguments, the relative error is at most 2^-22.
#[inline]
pub fn lg2(x: f32) -> f32 {
    libm::log2(f64::from(x)) as f32
}

/// Emulates `tanh.approx.f32`, whose relative error is at most 2^-11.
#[inline]
pub fn tanh(x: f32) -> f32 {
    libm::tanh(f64::from(x)) as f32
}

/// Replaces a subnormal number by a zero of the same sign. PTX instructions with `.ftz` flush their operands
/// and results in this way.
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

/// Emulates `ex2.approx.ftz.f32`, whose error is at most 2 ulp.
#[inline]
pub fn ex2_ftz(x: f32) -> f32 {
    flush(ex2(flush(x)))
}

/// Emulates `rcp.approx.ftz.f32`, whose error is at most 1 ulp.
#[inline]
pub fn rcp_ftz(x: f32) -> f32 {
    flush(rcp(flush(x)))
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
    // f64 represents the product of two f32 values exactly, but the addition of `c` in f64 may round. `sum`
    // is the rounded f64 sum, and `lost` is the exact sum minus `sum`. `nearest` is `sum` rounded to f32. If
    // `nearest` equals `sum`, it is above the exact sum only if `lost` is negative.
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let lost = (product - (sum - (sum - product))) + (c - (sum - product));
    let nearest = sum as f32;
    let above = f64::from(nearest) > sum || f64::from(nearest) == sum && lost < 0.0;
    if above { nearest.next_down() } else { nearest }
}
