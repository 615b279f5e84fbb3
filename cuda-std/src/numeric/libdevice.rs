//! `expf`, `erff` and `tanhf` with the same bits as in CUDA's math library, which torch's kernels call.
//!
//! The functions of this file use the algorithms, constants and instructions of libdevice's `__nv_expf`,
//! `__nv_erff` and `__nv_tanhf` without fast math. A kernel that calls them can therefore give the same bits
//! as a sequence of torch operators. All their instructions are IEEE operations, except `ex2.approx` and
//! `rcp.approx`. On the CPU executor, these two return the same bits as on a Hopper GPU.
//!
//! The algorithms come from libdevice.10.bc of CUDA 13.0, and for [`Erf::CUDA_13_2`] from CUDA 13.2. The
//! error bounds come from the CUDA C++ Programming Guide, section "Mathematical Functions". The tests in this
//! file check these bounds.
use crate::arch::{ex2_ftz, fma, fma_rm, fma_sat, rcp_ftz};

/// Returns `e^x + addend`. The error of `e^x` is at most 2 ulp.
///
/// The function computes `e^x = 2^i * 2^f` with `i = floor(x * log2(e) + 0.5)` and the remainder `f = x *
/// log2(e) - i`. One FMA multiplies the two powers and adds `addend`, because nvcc also contracts a product
/// and a following addition. A saturating FMA keeps `i` between -126 and 126. If `x * log2(e)` is outside
/// this range, `f` becomes large in magnitude, so `2^f` overflows or underflows as it should.
#[inline(always)]
pub fn exp_add(x: f32, addend: f32) -> f32 {
    const LOG2_E: f32 = f32::from_bits(0x3FB8_AA3B);
    const LOG2_E_LOW: f32 = f32::from_bits(0x32A5_7060);
    const RANGE: f32 = 252.0;
    // Adding `SHIFT` (1.5 * 2^23) moves an integer into the low bits of a float. In `SHIFT + 1.0`, the 1 is
    // the biased exponent of 2^-126, the smallest normal number.
    const SHIFT: f32 = 12_582_912.0;
    let shifted = fma_rm(fma_sat(x, LOG2_E / RANGE, 0.5), RANGE, SHIFT + 1.0);
    let exponent = shifted - (SHIFT + 127.0);
    let fraction = fma(x, LOG2_E_LOW, fma(x, LOG2_E, -exponent));
    fma(f32::from_bits(shifted.to_bits() << 23), ex2_ftz(fraction), addend)
}

/// Returns `e^x` as `expf` does, with an error of at most 2 ulp.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding -0 does not change the product.
    exp_add(x, -0.0)
}

/// Returns `tanh(x)` with the algorithm of CUDA's `tanhf`, with an error of at most 2 ulp.
///
/// For `|x| < 0.6`, the result is an odd polynomial in `x`. Otherwise it is `1 - 2 / (e^(2|x|) + 1)` with the
/// sign of `x`.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    const TWO_LOG2_E: f32 = 2.885_39;
    let size = x.abs();
    // For `|x|` from 9.01 on, libdevice returns 1 in a separate branch. For such `x`, the following
    // expression rounds to 1, so no branch is needed.
    let far = fma(rcp_ftz(ex2_ftz(size * TWO_LOG2_E) + 1.0), -2.0, 1.0).copysign(x);

    let square = x * x;
    let p = fma(f32::from_bits(0x3C80_F082), square, f32::from_bits(0xBD56_3CAE));
    let p = fma(p, square, f32::from_bits(0x3E08_5941));
    let p = fma(p, square, f32::from_bits(0xBEAA_A9ED));
    // `p * square` is computed as an FMA with +0, so that tanh(-0) is -0. With a plain product, it would be
    // +0.
    let near = fma(fma(p, square, 0.0), x, x);
    if size >= 0.6 { far } else { near }
}

/// Coefficients of CUDA's `erff`. CUDA 13.2 changed them, and builds of torch exist for older and for newer
/// CUDA versions.
#[derive(Clone, Copy)]
pub struct Erf {
    /// The smallest `|x|` for which `erf` uses the coefficients `far`.
    far_from: f32,
    /// Coefficients of a polynomial in `|x|`, which approximates `-log2(1 - erf(|x|)) / |x| - 1`, highest
    /// power first.
    far: [f32; 7],
    /// Coefficients of a polynomial in `x^2`, which approximates `erf(x) / x - 1`, highest power first.
    near: [f32; 7],
}

const fn floats(bits: [u32; 7]) -> [f32; 7] {
    let mut values = [0.0; 7];
    let mut i = 0;
    while i < 7 {
        values[i] = f32::from_bits(bits[i]);
        i += 1;
    }
    values
}

impl Erf {
    /// Coefficients of CUDA up to 13.1. They apply to the default build of torch 2.11, which uses CUDA 13.0.
    pub const CUDA_12: Self = Self {
        far_from: 1.002_96,
        far: floats([
            0x38EB_4C3A,
            0xBAAE_005B,
            0x3C09_919F,
            0xBD24_D99A,
            0x3E23_5519,
            0x3F69_B4F9,
            0x3F21_0A14,
        ]),
        near: floats([
            0x38B1_E96A,
            0xBA57_4D20,
            0x3BAA_D5EA,
            0xBCDC_1BE7,
            0x3DE7_18AF,
            0xBEC0_93AC,
            0x3E03_75D3,
        ]),
    };
    /// Coefficients of CUDA 13.2 and later.
    pub const CUDA_13_2: Self = Self {
        far_from: f32::from_bits(0x3F80_7B28),
        far: floats([
            0x388E_49B7,
            0xBA73_C723,
            0x3BE3_E044,
            0xBD19_B6F7,
            0x3E20_72AB,
            0x3F6A_18F3,
            0x3F20_F3EB,
        ]),
        near: floats([
            0x388D_8E09,
            0xBA48_7A7D,
            0x3BA8_86C1,
            0xBCDB_C4CF,
            0x3DE7_12BB,
            0xBEC0_9388,
            0x3E03_75D4,
        ]),
    };

    /// Returns `erf(x)` with the algorithm of CUDA's `erff`, with an error of at most 2 ulp.
    ///
    /// For `|x| < far_from` the result is `x + x * near(x^2)`. For larger `|x|` it is
    /// `1 - 2^-(|x| + |x| * far(|x|))` with the sign of `x`. `near` and `far` are polynomials. The function
    /// first selects the coefficients of one of them, and then evaluates only this polynomial.
    #[inline(always)]
    pub fn erf(self, x: f32) -> f32 {
        let is_far = x.abs() >= self.far_from;
        let at = if is_far { x.abs() } else { x * x };
        // Select between two coefficients, instead of indexing an array with a number that depends on `x`.
        // Such an index would cause memory loads.
        let c = |far: f32, near: f32| if is_far { far } else { near };
        let (far, near) = (self.far, self.near);
        let p = fma(c(far[0], near[0]), at, c(far[1], near[1]));
        let p = fma(p, at, c(far[2], near[2]));
        let p = fma(p, at, c(far[3], near[3]));
        let p = fma(p, at, c(far[4], near[4]));
        let p = fma(p, at, c(far[5], near[5]));
        let p = fma(p, at, c(far[6], near[6]));
        let sum = fma(p, x, x);
        if is_far { (1.0 - ex2_ftz(-sum.abs())).copysign(x) } else { sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns every 1009th bit pattern of an f32. The returned floats cover both signs, all exponents,
    /// subnormal numbers and NaN.
    fn floats() -> impl Iterator<Item = f32> {
        (0..=u32::MAX).step_by(1009).map(f32::from_bits)
    }

    /// Panics unless the results of `f` and `reference` differ by at most `bound` ulp for all tested
    /// arguments. If `reference` returns NaN, `f` must also return NaN.
    #[track_caller]
    fn within(bound: f64, f: impl Fn(f32) -> f32, reference: impl Fn(f64) -> f64) {
        for x in floats() {
            let (got, exact) = (f(x), reference(f64::from(x)));
            if exact.is_nan() || exact.abs() > f64::from(f32::MAX) {
                assert_eq!(got.is_nan(), exact.is_nan(), "f({x:e}) is {got:e}");
                continue;
            }
            let ulp = f64::from(exact.abs().max(f64::from(f32::MIN_POSITIVE)) as f32).log2().floor().exp2()
                / 8_388_608.0;
            let error = (f64::from(got) - exact).abs() / ulp;
            assert!(error <= bound, "f({x:e}) is {got:e}, expected {exact:e}: {error:.2} ulp");
        }
    }

    #[test]
    fn exp_is_accurate() {
        within(2.0, exp, libm::exp);
        // The rounding of the sum adds half an ulp.
        within(2.5, |x| exp_add(-x, 1.0), |x| 1.0 + libm::exp(-x));
        assert_eq!([exp(0.0), exp(-0.0), exp(f32::NEG_INFINITY)], [1.0, 1.0, 0.0]);
    }

    #[test]
    fn tanh_is_accurate() {
        within(2.0, tanh, libm::tanh);
        assert!(tanh(-0.0).is_sign_negative());
        assert_eq!([tanh(f32::INFINITY), tanh(-20.0)], [1.0, -1.0]);
    }

    #[test]
    fn erf_is_accurate() {
        within(2.0, |x| Erf::CUDA_12.erf(x), libm::erf);
        within(2.0, |x| Erf::CUDA_13_2.erf(x), libm::erf);
        assert!(Erf::CUDA_12.erf(-0.0).is_sign_negative());
        assert_eq!([Erf::CUDA_12.erf(f32::INFINITY), Erf::CUDA_13_2.erf(-9.0)], [1.0, -1.0]);
    }
}
