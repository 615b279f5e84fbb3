//! Softmax's reduction: the maximum of a row and the sum of `exp(x - max)`, gathered in one pass.
//!
//! The maximum of several packs is found first, so that an element costs one `ex2` and the sum is scaled down once for
//! all of them. `x - max` is taken before `log2(e)` multiplies it: `fma(x, log2(e), -max * log2(e))` would save an
//! instruction and overflow in a row of `finfo.min`, as attention masks have them.
use core::f32::consts::{LN_2, LOG2_E};

use cuda_std::math::{ex2_ftz, lg2};
use cuda_std::prelude::*;

/// The maximum of some logits, and the sum of `exp(x - max)` over them.
#[derive(Clone, Copy)]
pub(crate) struct ExpSum {
    /// The largest logit; of none, or none but -inf, the lowest finite number: `-inf - max` is then no NaN.
    pub max: f32,
    /// 0 for no logit but -inf; NaN where one is NaN or +inf.
    pub sum: f32,
}

impl ExpSum {
    /// Of no logits.
    pub const EMPTY: Self = Self { max: f32::MIN, sum: 0.0 };

    /// With the logits of `packs` too.
    #[inline(always)]
    pub fn with<T: Elem, const N: usize>(self, packs: [Pack<T>; N]) -> Self {
        let mut largest = packs[0];
        for i in 1..N {
            largest = largest.max(packs[i]);
        }
        let max = max_of(largest.lanes()).max(self.max);
        let mut sum = self.sum * exp::<T>(self.max - max);
        for i in 0..N {
            sum += packs[i].opaque_lanes().lanes().map(|x| exp::<T>(x - max)).sum();
        }
        Self { max, sum }
    }

    /// Of the team's whole row, the same bits in each thread. Every thread of the block must call it, once.
    #[inline(always)]
    pub fn reduce<T: Elem>(self, team: Team) -> Self {
        let combine = |[max_a, sum_a]: [f32; 2], [max_b, sum_b]: [f32; 2]| {
            let max = max_a.max(max_b);
            [max, sum_a * exp::<T>(max_a - max) + sum_b * exp::<T>(max_b - max)]
        };
        let (partial, none) = ([self.max, self.sum], [Self::EMPTY.max, Self::EMPTY.sum]);
        let [max, sum] = team.reduce(partial, none, &mut SharedMemory::of_launch(), combine);
        Self { max, sum }
    }
}

/// The largest lane, as a balanced tree.
#[inline(always)]
fn max_of<L: F32Vec>(lanes: L) -> f32 {
    let mut lanes = lanes;
    let mut width = L::LEN as usize / 2;
    while width > 0 {
        lanes = L::from_fn(|i| lanes.get(i).max(lanes.get((i + width) % L::LEN as usize)));
        width /= 2;
    }
    lanes.get(0)
}

/// `exp(x)` for what logits of `T` differ by, so hardly above 0; 0 below 2^-126.
///
/// The product with `log2(e)` is off by up to `|x| * 2^-24`, which 16 bits hide; for f32 the remainder of the product
/// goes into the result: 3 ulp at most, of which `ex2` has 2.
#[inline(always)]
pub(crate) fn exp<T: Elem>(x: f32) -> f32 {
    /// `log2(e) - LOG2_E`.
    const LOG2_E_REMAINDER: f32 = 1.925_963e-8;
    let exponent = x * LOG2_E;
    let power = ex2_ftz(exponent);
    if size_of::<T>() == 2 {
        return power;
    }
    let remainder = fma(x, LOG2_E_REMAINDER, fma(x, LOG2_E, -exponent));
    // Infinite, or a NaN, where `x` is infinite or nearly so: the power says it all.
    let remainder = if remainder.abs() < 1.0 { remainder } else { 0.0 };
    fma(power, remainder * LN_2, power)
}

/// `ln(x)` within 2 ulp, where `lg2.approx` near 1 has no correct digit; for one number a row.
///
/// `x = m * 2^k` with `m` between `sqrt(1/2)` and `sqrt(2)`; `ln(m) = 2 * atanh((m - 1) / (m + 1))` as a series.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    if !(x > 0.0 && x < f32::INFINITY) {
        return lg2(x);
    }
    let above = x.to_bits().wrapping_sub(SQRT_HALF);
    let exponent = (above as i32 >> 23) as f32;
    let mantissa = f32::from_bits((above & 0x007f_ffff) + SQRT_HALF);
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let series = fma(square, fma(square, fma(square, 1.0 / 9.0, 1.0 / 7.0), 1.0 / 5.0), 1.0 / 3.0);
    let double = ratio + ratio;
    fma(exponent, LN_2, fma(double * square, series, double))
}

/// What the kernels of a softmax and of its gradient need to know beside their operands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxParams {
    /// Rows of the operands.
    pub rows: u64,
    /// Rows in a group of the outer stride; 0: the inner stride is the only one.
    pub inner: u32,
    /// Columns of a row.
    pub cols: u32,
    /// Are all operands `Rows::is_vector`? 0 or 1.
    pub vector: u32,
    /// The logarithm of the softmax? 0 or 1.
    pub log: u32,
}

/// The thread's packs of `N` tiles from `first` on; -inf past the end, which adds nothing to a sum of exponentials.
#[inline(always)]
pub(crate) fn logits<T: Elem, const N: usize, const VECTOR: bool>(
    x: Row<T, VECTOR>,
    first: u32,
) -> [Pack<T>; N] {
    let mut packs = [Pack::ZERO; N];
    for i in 0..N {
        packs[i] = x.load_or(first + i as u32, T::NEG_INFINITY, Load::ReadOnly);
    }
    packs
}

#[cfg(test)]
mod tests {
    use core::f32::consts::FRAC_1_SQRT_2;

    use super::*;

    #[track_caller]
    fn close(got: f32, expected: f64, ulps: f64) {
        let off = (f64::from(got) - expected).abs() / expected.abs();
        assert!(
            got as f64 == expected || off <= ulps * 2_f64.powi(-23),
            "{got:e}, expected {expected:e}: {off:e}"
        );
    }

    #[test]
    fn exp_of_what_logits_differ_by() {
        for i in 0..87_000 {
            let x = i as f32 * -1e-3;
            close(exp::<f32>(x), f64::from(x).exp(), 1.0);
            close(exp::<bf16>(x), f64::from(x).exp(), 0.5 + 0.6 * f64::from(-x));
        }
        for x in [-104.0, -200.0, -1e38, -3e38, f32::NEG_INFINITY] {
            assert_eq!([exp::<f32>(x), exp::<f16>(x)], [0.0; 2], "{x:e}");
        }
        assert!(exp::<f32>(f32::NAN).is_nan() && exp::<f16>(f32::NAN).is_nan());
        assert_eq!([exp::<f32>(0.0), exp::<f16>(0.0)], [1.0; 2]);
    }

    #[test]
    fn ln_near_one_and_far() {
        for i in 1..2_000_000 {
            close(ln(i as f32 * 0.01), f64::from(i as f32 * 0.01).ln(), 2.0);
        }
        for x in
            [1.0, 1.0 + f32::EPSILON, 1.0 - f32::EPSILON, 262_144.0, 1e30, f32::MIN_POSITIVE, FRAC_1_SQRT_2]
        {
            close(ln(x), f64::from(x).ln(), 2.0);
        }
        assert_eq!([ln(0.0), ln(f32::INFINITY)], [f32::NEG_INFINITY, f32::INFINITY]);
        assert!(ln(f32::NAN).is_nan());
    }
}
