//! f32 functions: fused multiply-add, roots, reciprocals, exponentials and logarithms.
//!
//! The operators `+ - * /` are IEEE operations and give the same bits on the GPU and on the CPU executor. The
//! compiler does not fuse `a * b + c`, so a kernel must call [`fma`] for a fused multiply-add. Each
//! approximate function is one PTX instruction, and its error bound comes from the PTX ISA manual. The CPU
//! executor returns the bits of a Hopper GPU, except for `tanh`, whose results it rounds correctly.
use crate::arch;

macro_rules! functions {
    ($($name:ident($($arg:ident),*): $doc:literal;)*) => { $(
        #[doc = $doc]
        #[inline(always)]
        pub fn $name($($arg: f32),*) -> f32 {
            arch::$name($($arg),*)
        }
    )* };
}
functions! {
    fma(a, b, c): "`a * b + c`, rounded once: the same bits on both backends.";
    sqrt(x): "Square root, IEEE: the same bits on both backends.";
    rsqrt(x): "`1 / sqrt(x)`: `rsqrt.approx.f32`, relative error at most 2^-22.9.";
    rcp(x): "`1 / x`: `rcp.approx.f32`, at most 1 ulp.";
    ex2(x): "`2^x`: `ex2.approx.f32`, at most 2 ulp.";
    ex2_ftz(x): "`2^x`: `ex2.approx.ftz.f32`, at most 2 ulp; subnormal results are 0. One instruction, not several.";
    rcp_ftz(x): "`1 / x`: `rcp.approx.ftz.f32`, at most 1 ulp; subnormal results are 0. One instruction, not several.";
    lg2(x): "`log2(x)`: `lg2.approx.f32`, absolute error at most 2^-22 near 1, relative 2^-22 elsewhere.";
    tanh(x): "`tanh(x)`: `tanh.approx.f32`, relative error at most 2^-11.";
}

/// Returns `x / d` for finite `x` and for `d` from 1 to 2^125.
///
/// The function multiplies `x` by an approximate reciprocal of `d` ([`rcp_ftz`]), and corrects the quotient
/// with one Newton step. The quotient differs from the result of IEEE division by at most 1 ulp. If both are
/// rounded to f16 or bf16, they have the same bits.
#[inline(always)]
pub fn quotient(x: f32, d: f32) -> f32 {
    let inverse = rcp_ftz(d);
    let guess = x * inverse;
    // The two minus signs, of `-x` and `-inverse`, cancel. Without them, the result for `x` = -0 would be +0
    // instead of -0.
    fma(fma(d, guess, -x), -inverse, guess)
}

/// Returns `1 / x` rounded to nearest. `1 / x` must be a normal number.
///
/// The function refines an approximate reciprocal ([`rcp_ftz`]) with one Newton step. The GPU and the CPU
/// executor return the same bits.
#[inline(always)]
pub fn reciprocal(x: f32) -> f32 {
    let guess = rcp_ftz(x);
    fma(guess, fma(-x, guess, 1.0), guess)
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn quotients_have_the_bits_of_division_in_16_bits() {
        for bits in 0..=u16::MAX {
            let [x, y] = [bf16::from_bits(bits).to_f32(), f16::from_bits(bits).to_f32()];
            for divisor in [1.0, 1.0 + f32::EPSILON, 1.3, 2.0, 3.0, 1.0e9, 4.0e37] {
                if x.is_finite() {
                    let [got, expected] = [quotient(x, divisor), x / divisor].map(bf16::from_f32);
                    assert_eq!(got.to_bits(), expected.to_bits(), "{x:e} / {divisor:e}");
                }
                if y.is_finite() {
                    let [got, expected] = [quotient(y, divisor), y / divisor].map(f16::from_f32);
                    assert_eq!(got.to_bits(), expected.to_bits(), "{y:e} / {divisor:e}");
                }
            }
        }
    }
}
