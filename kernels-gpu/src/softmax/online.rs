//! Online softmax reduction, which computes the row maximum and `sum(exp(x - max))` in one pass.
//!
//! Terms: a team is the set of threads that share a row, and a pack is a 16-byte vector.
//!
//! Each step first computes the maximum of several packs, and rescales the previous sum once. Then each
//! element takes one `ex2` instruction. The code subtracts `max` from `x` before it multiplies by `log2(e)`.
//! A single fma, `x * log2(e) - max * log2(e)`, would save an instruction. However, this fma overflows for
//! elements such as `torch.finfo(torch.float32).min`, which attention masks contain.
use core::f32::consts::{LN_2, LOG2_E};

use cuda_std::math::{ex2_ftz, lg2};
use cuda_std::prelude::*;

use super::softcap::Softcap;

/// The maximum of a set of logits, and the sum of `exp(x - max)` over them.
#[derive(Clone, Copy)]
pub(crate) struct ExpSum {
    /// The largest logit. If the set is empty or all logits are -inf, `max` is the lowest finite f32. With a
    /// `max` of -inf, `x - max` would be NaN for these logits.
    pub max: f32,
    /// The sum of `exp(x - max)`. The sum is 0 if the set is empty or all logits are -inf. The sum is NaN if
    /// a logit is NaN or +inf.
    pub sum: f32,
}

impl ExpSum {
    /// The value for an empty set of logits.
    pub const EMPTY: Self = Self { max: f32::MIN, sum: 0.0 };

    /// Adds the logits of `packs` to the set. Returns the maximum and the sum for the resulting set.
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

    /// Like [`ExpSum::with`], but for logits with a softcap. `packs` are the thread's packs (16-byte vectors)
    /// of the row `x`, from tile number `first` on.
    #[inline(always)]
    pub fn with_capped<T: Elem, const N: usize, const VECTOR: bool>(
        self,
        x: Row<T, VECTOR>,
        first: u32,
        packs: [Pack<T>; N],
        softcap: Softcap,
    ) -> Self {
        let mut largest = packs[0];
        for i in 1..N {
            largest = largest.max(packs[i]);
        }
        // The softcap is a monotonic function, so the largest logit also has the largest result.
        let max = softcap.value::<true>(max_of(largest.lanes())).max(self.max);
        let mut sum = self.sum * exp::<T>(self.max - max);
        for i in 0..N {
            let terms = packs[i].opaque_lanes().lanes().map(|x| exp::<T>(softcap.value::<true>(x) - max));
            // After the end of the row, the packs (16-byte vectors) contain -inf. The softcap of -inf is
            // finite, so `x.inside` sets these terms to 0.
            sum += x.inside(first + i as u32, terms).sum();
        }
        Self { max, sum }
    }

    /// Combines the results of all threads that share a row (the team) into the result of the row. All these
    /// threads get bitwise identical results. Every thread of the block must call this function exactly once.
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

/// Returns the largest element of `lanes`. The function compares in a balanced tree, so that the chain of
/// dependent instructions is short.
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

/// Returns `exp(x)`. `x` is a difference such as `logit - max`, so it is negative, 0 or slightly above 0. `T`
/// is the type of the logits. Results below 2^-126 become 0.
///
/// `exp(x)` is computed as `ex2(x * log2(e))`. The rounding of the product causes a relative error of the
/// result of up to about `|x| * 2^-24`, which is negligible for 16-bit results. If `T` is f32, the function
/// computes the rounding error of the product and corrects the result. The total error is then at most 3 ulp,
/// and up to 2 ulp of it come from the instruction `ex2`.
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
    // If `|x|` is infinite or close to the largest f32, the remainder is large, infinite or NaN. The function
    // then returns `power` without a correction.
    let remainder = if remainder.abs() < 1.0 { remainder } else { 0.0 };
    fma(power, remainder * LN_2, power)
}

/// Returns `ln(x)` with an error of at most 2 ulp. The instruction `lg2.approx` is faster, but for `x` near
/// 1, its result can have no correct digit. This function is slower than the instruction, so kernels call it
/// only once per row.
///
/// The function splits `x` into `m * 2^k` with `m` between `sqrt(1/2)` and `sqrt(2)`. It computes `ln(m)` as
/// a series for `2 * atanh((m - 1) / (m + 1))`, and adds `k * ln(2)`.
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

/// Kernel argument: the parameters of the softmax kernels and their backward kernels, without the tensors.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxParams {
    /// Number of rows.
    pub rows: u64,
    /// Number of rows per run. Within a run, consecutive rows are `Rows::inner_stride` elements apart.
    /// Consecutive runs start `Rows::outer_stride` elements apart. 0 means that all rows are in one run.
    pub inner: u32,
    /// Columns per row.
    pub cols: u32,
    /// 1 if all operands allow 16-byte accesses (`Rows::is_vector`), otherwise 0.
    pub vector: u32,
    /// 1 if the forward pass computes the logarithm of the softmax, 0 if it computes the softmax.
    pub log: u32,
}

/// Loads this thread's packs of `N` tiles, from tile number `first` on. A tile has one pack (16 bytes) per
/// thread. Elements after the end of the row are -inf, so that they add nothing to a sum of exponentials.
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
            close(exp::<f32>(x), f64::from(x).exp(), 2.0);
            close(exp::<bf16>(x), f64::from(x).exp(), 1.0 + 0.6 * f64::from(-x));
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
