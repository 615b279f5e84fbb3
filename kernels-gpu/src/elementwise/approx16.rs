//! Activation functions for 16-bit types. These functions take half as many instructions as CUDA's library
//! functions. They are less accurate than CUDA's library, whose f32 results have 24 significant bits. Their
//! accuracy is sufficient, because a bf16 result has only 8 significant bits, and an f16 result has 11.
//!
//! The functions for bf16 were compared with CUDA's library for all 65,536 bf16 inputs. After rounding to
//! bf16, their results have the same bits. The test `every_value_has_the_bits_of_the_library` checks this on
//! the CPU, and `tests/python/ops/test_activation.py` checks it on a GPU.
//!
//! Of the functions of this module, only [`tanh`] is accurate enough for f16. Its callers add 1 to the result
//! before they round. A small absolute error of `tanh` is therefore harmless, even if its relative error is
//! large, as near 0.
use cuda_std::math::{ex2_ftz, rcp_ftz};
use cuda_std::prelude::*;

use super::constants::{BETA, KAPPA};
use core::f32::consts::LOG2_E;

/// Returns whether `T` is bf16. bf16 is the only element type that encodes negative infinity as 0xff80.
#[inline(always)]
pub(crate) fn is_bf16<T: Elem>() -> bool {
    T::NEG_INFINITY.to_bits() == 0xff80
}

/// Returns `x / 2 * (1 + erf(x / sqrt(2)))` for a bf16 `x`.
///
/// `erf` is computed as `1 - 2^-(p(|x|) * |x|)` with a polynomial `p`. Near `x = 0`, the computed `erf` has a
/// large relative error. This error is harmless, because GELU adds 1 to `erf`. For `|x|` below 1.4, `p`
/// approximates the exact `erf`. From 1.4 on, it approximates CUDA's `erff`
/// ([`Erf::CUDA_12`](cuda_std::libdevice::Erf::CUDA_12)) with the errors of `erff`, because these errors
/// change the bf16 result there. The instruction `ex2.approx`, which computes the power of 2, has an error of
/// at most 2 ulp. This error changes no bf16 result.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    const P: [u32; 8] = [
        0x35E4_99BE,
        0xB7B5_DF39,
        0x38A3_BF92,
        0x39F6_2297,
        0xBBF9_801A,
        0x3D58_FCAB,
        0x3EEB_04A0,
        0x3F93_584E,
    ];
    let size = x.abs();
    let mut p = f32::from_bits(P[0]);
    for i in 1..P.len() {
        p = fma(p, size, f32::from_bits(P[i]));
    }
    let erf = 1.0 - ex2_ftz(-(p * size));
    (0.5 * x) * (1.0 + erf.copysign(x))
}

/// Returns `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))` for a bf16 `x`.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    const LINEAR: f32 = 2.0 * LOG2_E * BETA;
    let exponent = fma(x * x, LINEAR * KAPPA, LINEAR) * x;
    let half_tanh = 0.5 - rcp_ftz(ex2_ftz(exponent.abs()) + 1.0);
    x * (0.5 + half_tanh.copysign(x))
}

/// Returns `tanh(x)` with an absolute error of at most 2^-22. The callers add 1 to the result and round the
/// sum to 16 bits.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    fma(rcp_ftz(ex2_ftz(x * (2.0 * LOG2_E)) + 1.0), -2.0, 1.0)
}

/// Returns `x / (1 + exp)` for `exp >= 0`, with an approximate reciprocal.
///
/// Numerator and denominator are scaled by 2^-8. Without this factor, the reciprocal of a very large
/// denominator would be subnormal, and `rcp.approx.ftz` would flush it to 0.
#[inline(always)]
pub(crate) fn over_one_plus(x: f32, exp: f32) -> f32 {
    const SCALE: f32 = 1.0 / 256.0;
    (x * SCALE) * rcp_ftz(fma(exp, SCALE, SCALE))
}

/// Returns `1 / (1 + e^-x)` for a bf16 `x`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    over_one_plus(1.0, ex2_ftz(-LOG2_E * x))
}

/// Returns `x / (1 + e^-x)` for a bf16 `x`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    over_one_plus(x, ex2_ftz(-LOG2_E * x))
}

#[cfg(test)]
mod tests {
    use core::f32::consts::FRAC_1_SQRT_2;

    use cuda_std::libdevice::{self, Erf, exp_add};
    use half::{bf16, f16};

    use super::*;
    use crate::elementwise::activations::Function;
    use crate::elementwise::constants::QUICK;
    use crate::elementwise::rounded_chain::RoundedVec;

    /// Asserts that `function` and the library function `of_library` return the same bits for every input of
    /// the 16-bit type `T`.
    #[track_caller]
    fn same<T: Elem>(function: u32, of_library: fn(f32) -> f32) {
        for bits in 0..=u32::from(u16::MAX) {
            let x = T::from_bits(bits).to_f32();
            let got = Function::new(function).exact(RoundedVec::<T>::new(T::F32Vec::splat(x))).lanes().get(0);
            let expected = T::round(of_library(x));
            let equal = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
            assert!(equal, "function {function} of {x:e} is {got:e}, expected {expected:e}");
        }
    }

    fn new<T: Elem>(x: f32) -> f32 {
        let cube = T::round(T::round(x * x) * x);
        one_plus_tanh::<T>(x, T::round(T::round(x + T::round(cube * KAPPA)) * BETA))
    }
    fn fast<T: Elem>(x: f32) -> f32 {
        let sum = T::round(1.0 + T::round(T::round(x * KAPPA) * x));
        one_plus_tanh::<T>(x, T::round(T::round(x * BETA) * sum))
    }
    fn one_plus_tanh<T: Elem>(x: f32, inner: f32) -> f32 {
        T::round(0.5 * x) * T::round(1.0 + T::round(libdevice::tanh(inner)))
    }
    fn quick<T: Elem>(x: f32) -> f32 {
        x * T::round(1.0 / exp_add(-T::round(QUICK * x), 1.0))
    }

    #[test]
    fn every_value_has_the_bits_of_the_library() {
        same::<bf16>(Function::GELU, |x| (x * 0.5) * (1.0 + Erf::CUDA_12.erf(x * FRAC_1_SQRT_2)));
        same::<bf16>(Function::GELU_TANH, |x| {
            (0.5 * x) * (1.0 + libdevice::tanh(BETA * fma(x * x * x, KAPPA, x)))
        });
        same::<bf16>(Function::SILU, |x| x / exp_add(-x, 1.0));
        same::<bf16>(Function::GELU_NEW, new::<bf16>);
        same::<f16>(Function::GELU_NEW, new::<f16>);
        same::<bf16>(Function::GELU_FAST, fast::<bf16>);
        same::<f16>(Function::GELU_FAST, fast::<f16>);
        same::<bf16>(Function::GELU_QUICK, quick::<bf16>);
    }
}
