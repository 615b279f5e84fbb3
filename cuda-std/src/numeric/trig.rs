//! Sine and cosine in f32, with the constants and the order of operations of CUDA's `sinf` and `cosf`.
//!
//! The results have the same bits on the GPU and on the CPU executor. For `|x|` below 105,615, torch's CUDA
//! kernels return the same bits, too.
//!
//! The Cody-Waite reduction subtracts the nearest multiple of pi/2 from `x` in three fused multiply-adds. The
//! absolute value of the remainder is at most about pi/4. Polynomials then give the sine and cosine of the
//! remainder. For `|x|` from 105,615 on, CUDA uses the Payne-Hanek reduction with integers. This module uses
//! the Cody-Waite reduction for all `x`, so the error of its results grows slowly with `|x|`.
use core::f32::consts::FRAC_2_PI;

use super::math::fma;

/// pi/2 as a sum of three floats, largest first.
const HALF_PI: [f32; 3] =
    [f32::from_bits(0x3fc9_0fda), f32::from_bits(0x33a2_2168), f32::from_bits(0x27c2_34c4)];
/// 1.5 * 2^23. Adding and then subtracting this value rounds a float to the nearest integer.
const TO_INTEGER: f32 = 12_582_912.0;

/// Returns `(sin x, cos x)`. The absolute error is at most 2^-23 for `|x|` up to 10^6.
#[inline(always)]
pub fn sin_cos(x: f32) -> (f32, f32) {
    let shifted = x * FRAC_2_PI + TO_INTEGER;
    let (quarters, quadrant) = (shifted - TO_INTEGER, shifted.to_bits());
    let [high, middle, low] = HALF_PI;
    let remainder = fma(quarters, -low, fma(quarters, -middle, fma(quarters, -high, x)));
    let (sin, cos) = (sin_of_remainder(remainder), cos_of_remainder(remainder));
    let (sin, cos) = if quadrant & 1 == 0 { (sin, cos) } else { (cos, sin) };
    (negate_if(sin, quadrant & 2 != 0), negate_if(cos, quadrant.wrapping_add(1) & 2 != 0))
}

#[inline(always)]
fn negate_if(x: f32, wanted: bool) -> f32 {
    if wanted { fma(x, -1.0, 0.0) } else { x }
}

#[inline(always)]
fn sin_of_remainder(x: f32) -> f32 {
    let square = x * x;
    let sum = fma(square, f32::from_bits(0xb94d_4153), f32::from_bits(0x3c08_85e4));
    fma(fma(square, sum, f32::from_bits(0xbe2a_aaa8)), x * square, x)
}

#[inline(always)]
fn cos_of_remainder(x: f32) -> f32 {
    let square = x * x;
    let sum = fma(square, f32::from_bits(0x37cb_ac00), f32::from_bits(0xbab6_07ed));
    let sum = fma(square, sum, f32::from_bits(0x3d2a_aabb));
    fma(fma(square, sum, f32::from_bits(0xbeff_ffff)), square, 1.0)
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    use super::*;

    /// Returns the largest error of `sin_cos` compared with f64 results, and the argument with this error.
    /// The function tests 4,000,001 evenly spaced arguments from 0 to `max`.
    fn worst(max: f32) -> (f64, f32) {
        let steps = 4_000_000_u32;
        let off = |step: u32| {
            let x = max * (step as f32 / steps as f32);
            let ((sin, cos), wide) = (sin_cos(x), f64::from(x));
            ((f64::from(sin) - wide.sin()).abs().max((f64::from(cos) - wide.cos()).abs()), x)
        };
        (0..=steps).map(off).max_by(|a, b| a.0.total_cmp(&b.0)).expect("steps")
    }

    #[test]
    fn close_to_f64_up_to_a_million() {
        for max in [1.0, 10.0, 1e3, 1e5, 1e6] {
            let (error, at) = worst(max);
            assert!(error <= 2.0_f64.powi(-23), "sin_cos({at}) is off by {error:e}");
        }
    }

    #[test]
    fn symmetric_and_exact_at_zero() {
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
        for x in [0.1, 1.0, 2.5, 100.0, 54_321.0] {
            let ((sin, cos), (minus_sin, same_cos)) = (sin_cos(x), sin_cos(-x));
            assert_eq!((-sin, cos), (minus_sin, same_cos));
        }
    }
}
