//! The approximate PTX instructions `ex2`, `rcp`, `rsqrt` and `lg2`, with the bits of a Hopper GPU.
//!
//! The GPU divides the range of the mantissas into segments. In each segment, it computes a quadratic
//! polynomial with integer coefficients, and truncates the result. The multiplier that computes the square
//! for the quadratic term omits small partial products (see [`square`]). The functions of this file repeat
//! these steps. The results have the same bits as the instructions of an H100 and an H200. The coefficients
//! were computed from these results by `scripts/approximate_tables.py`, which needs a Hopper GPU.
//!
//! ptxas compiles an instruction without `.ftz` to the instruction with `.ftz`, and adds multiplications
//! before and after it. These multiplications scale argument and result if one of them may be subnormal. The
//! functions repeat these multiplications, which were read from the machine code for sm_90.

include!("data/approximate.rs");

/// The NaN that the instructions return.
const NAN: f32 = f32::from_bits(0x7FFF_FFFF);
/// Number of different mantissas, which is also the value of the implicit leading bit of a mantissa.
const ONE: u32 = 1 << 23;
const INFINITE: u32 = 0x7F80_0000;
const TWO_24: f32 = 16_777_216.0;

/// `PRODUCTS[128 * l + u]` is a part of the square of a 17-bit number, which [`square`] explains. `l` has the
/// bits 2 to 8 of the number, and `u` has its bits 10 to 16. The part is a sum of products of a bit of `l`
/// and a bit of `u`, in units of 2^19. Products below 2^19 are omitted.
static PRODUCTS: [u8; 1 << 14] = {
    let mut products = [0; 1 << 14];
    let mut at = 0;
    while at < products.len() {
        let (upper, lower) = (at & 0x7F, at >> 7);
        let mut bit = 0;
        while bit < 7 {
            products[at] += ((lower >> bit & 1) * (upper >> (6 - bit))) as u8;
            bit += 1;
        }
        at += 1;
    }
    products
};

/// Returns the square of the 17-bit number `offset` as the GPU computes it, in units of 2^19.
///
/// A square is the sum of the products of every two bits of the number. The GPU omits all products below
/// 2^19. Of the products of two of the upper 8 bits (9 to 16), only the smallest is below this limit: bit 9
/// times itself. `PRODUCTS` contains the sums of the remaining products that are at least 2^19.
#[inline(always)]
fn square(offset: u32) -> u32 {
    let upper = offset >> 9;
    let at = (offset << 5 & 0x3F80) | (offset >> 10 & 0x7F);
    ((upper * upper) >> 1) + u32::from(PRODUCTS[at as usize])
}

/// Coefficients of a polynomial, in units of 2^-16. The constant term comes first.
type Polynomial = [i64; 4];

/// Returns the polynomials of an instruction, one per segment of the mantissas. The constant term of each
/// polynomial is a multiple of 2^14 plus `bias`, which is the same for all segments.
const fn polynomials<const N: usize>(coefficients: [[i32; 3]; N], bias: i64) -> [Polynomial; N] {
    let mut polynomials = [[0; 4]; N];
    let mut at = 0;
    while at < N {
        let [c0, c1, c2] = coefficients[at];
        // The fourth number is unused. It makes the size of an entry a power of two.
        polynomials[at] = [((c0 as i64) << 14) + bias, c1 as i64, c2 as i64, 0];
        at += 1;
    }
    polynomials
}

static EX2_POLYNOMIALS: [Polynomial; 64] = polynomials(EX2, 12_228);
static RCP_POLYNOMIALS: [Polynomial; 128] = polynomials(RCP, 4_046);
/// The polynomials for even and odd exponents.
static RSQRT_POLYNOMIALS: [[Polynomial; 64]; 2] = [polynomials(RSQRT0, 16_383), polynomials(RSQRT1, 16_383)];

/// Returns a polynomial of the 17-bit number `offset`, truncated to an integer with 24 bits.
#[inline(always)]
fn evaluate([c0, c1, c2, _]: &Polynomial, offset: u32) -> u32 {
    ((c0 + c1 * i64::from(offset) + c2 * i64::from(square(offset))) >> 16) as u32
}

/// Returns the float with the value `significand * 2^exponent`, or 0 if this value is below the normal
/// numbers. The significand has 24 bits, or it is 2^24.
#[inline(always)]
fn float(significand: u32, exponent: i32) -> f32 {
    let bits = significand as i32 + ((exponent + 149) << 23);
    if bits < ONE as i32 { 0.0 } else { f32::from_bits(bits as u32) }
}

/// Returns the result of `ex2.approx.ftz.f32`, whose error is at most 2 ulp.
#[inline]
pub fn ex2_ftz(x: f32) -> f32 {
    if x.abs() >= 128.0 || x.is_nan() {
        return match x {
            _ if x.is_nan() => NAN,
            _ if x > 0.0 => f32::INFINITY,
            _ => 0.0,
        };
    }
    // The GPU converts `x` to a fixed-point number with 23 fraction bits. It truncates the absolute value of
    // `x`. If `x` is negative and not an integer, it then takes the ones' complement instead of the negative
    // number.
    let fixed = (x.abs() * ONE as f32) as i32;
    let fraction = fixed & (ONE as i32 - 1);
    let fixed = if x >= 0.0 { fixed } else { -fixed - i32::from(fraction != 0) };
    let fraction = fixed as u32 & (ONE - 1);
    let significand = evaluate(&EX2_POLYNOMIALS[(fraction >> 17) as usize], fraction & 0x1_FFFF);
    float(significand, (fixed >> 23) - 23)
}

/// Returns the result of `ex2.approx.f32`, whose error is at most 2 ulp. Subnormal results are possible.
#[inline]
pub fn ex2(x: f32) -> f32 {
    if x < -126.0 {
        let root = ex2_ftz(x * 0.5);
        return root * root;
    }
    ex2_ftz(x)
}

/// Returns the result of `rcp.approx.ftz.f32`, whose error is at most 1 ulp.
#[inline]
pub fn rcp_ftz(x: f32) -> f32 {
    let bits = x.to_bits() & !(1 << 31);
    if bits.wrapping_sub(ONE) >= INFINITE - ONE {
        return match x {
            _ if x.is_nan() => NAN,
            _ if bits < ONE => f32::INFINITY.copysign(x),
            _ => 0.0_f32.copysign(x),
        };
    }
    let (exponent, mantissa) = ((bits >> 23) as i32 - 127, bits & (ONE - 1));
    let significand = evaluate(&RCP_POLYNOMIALS[(mantissa >> 16) as usize], (mantissa & 0xFFFF) << 1);
    float(significand, -24 - exponent).copysign(x)
}

/// Returns the result of `rcp.approx.f32`, whose error is at most 1 ulp. Subnormal arguments and results are
/// possible.
#[inline]
pub fn rcp(x: f32) -> f32 {
    const TWO_126: f32 = f32::from_bits(0x7E80_0000);
    let scale = match x.abs() {
        size if size > TWO_126 => 0.25,
        size if size < f32::MIN_POSITIVE => TWO_24,
        _ => return rcp_ftz(x),
    };
    rcp_ftz(x * scale) * scale
}

/// Returns the result of `rsqrt.approx.ftz.f32`, whose relative error is at most 2^-22.9.
#[inline]
pub fn rsqrt_ftz(x: f32) -> f32 {
    let bits = x.to_bits();
    if bits.wrapping_sub(ONE) >= INFINITE - ONE {
        return match x {
            _ if bits & INFINITE == 0 => f32::INFINITY.copysign(x),
            _ if x > 0.0 => 0.0,
            _ => NAN,
        };
    }
    let (exponent, mantissa) = ((bits >> 23) as i32 - 127, bits & (ONE - 1));
    let odd = exponent & 1;
    let polynomial = &RSQRT_POLYNOMIALS[odd as usize][(mantissa >> 17) as usize];
    let significand = evaluate(polynomial, mantissa & 0x1_FFFF);
    // For a power of four, the result is exact. The polynomial would give a result that is one ulp too small.
    let exact = mantissa == 0 && odd == 0;
    float(significand + u32::from(exact), -24 - ((exponent - odd) >> 1))
}

/// Returns the result of `rsqrt.approx.f32`, whose relative error is at most 2^-22.9.
#[inline]
pub fn rsqrt(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE {
        return rsqrt_ftz(x * TWO_24) * 4096.0;
    }
    rsqrt_ftz(x)
}

/// The polynomials of `lg2`. Their unit is 2^-40, which is 2^-16 ulp of a result from 0.5 to 1.
static LG2_POLYNOMIALS: [Polynomial; 64] = polynomials(LG2, 3_348);

/// Returns the result of `lg2.approx.ftz.f32`. For arguments between 0.5 and 2, the absolute error is at most
/// 2^-22. For other arguments, the relative error is at most 2^-22.
#[inline]
pub fn lg2_ftz(x: f32) -> f32 {
    let bits = x.to_bits();
    if bits.wrapping_sub(ONE) >= INFINITE - ONE {
        return match x {
            _ if bits & INFINITE == 0 => f32::NEG_INFINITY,
            _ if x > 0.0 => x,
            _ => NAN,
        };
    }
    // The logarithm of 1 is exactly 0. The polynomial would give its constant term instead, about 0.9 *
    // 2^-23.
    if x == 1.0 {
        return 0.0;
    }
    let (exponent, mantissa) = (i64::from(bits >> 23) - 127, bits & (ONE - 1));
    let [c0, c1, c2, _] = LG2_POLYNOMIALS[(mantissa >> 17) as usize];
    let offset = mantissa & 0x1_FFFF;
    // The GPU truncates the value of the polynomial to 36 fraction bits, and adds the exponent. If this sum
    // is negative, the GPU takes the ones' complement of the sum as its magnitude.
    let fixed = (exponent << 36) + ((c0 + c1 * i64::from(offset) + c2 * i64::from(square(offset))) >> 4);
    let size = (fixed ^ fixed >> 63) as u64;
    // The result is the magnitude, truncated to 24 significant bits. The magnitude is never zero.
    let zeros = size.leading_zeros();
    let significand = (size << zeros >> 40) as u32;
    // The value is `size * 2^-36`, and its exponent is 27 - `zeros`. The exponent field below is smaller by
    // one, because adding the significand, whose leading bit is 2^23, increases the field by one.
    let sign = (fixed < 0) as u32;
    f32::from_bits((sign << 31) + ((153 - zeros) << 23) + significand)
}

/// Returns the result of `lg2.approx.f32`. For arguments between 0.5 and 2, the absolute error is at most
/// 2^-22. For other arguments, the relative error is at most 2^-22. Subnormal arguments are possible.
#[inline]
pub fn lg2(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE {
        return lg2_ftz(x * TWO_24) - 24.0;
    }
    lg2_ftz(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits<const N: usize>(values: [f32; N]) -> [u32; N] {
        values.map(f32::to_bits)
    }

    /// Returns pseudo-random 32-bit numbers.
    fn numbers(count: u64) -> impl Iterator<Item = u32> {
        (0..count).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32)
    }

    /// Returns a checksum of the bits of `results`. The order of the results changes the checksum.
    fn checksum(results: impl Iterator<Item = f32>) -> u64 {
        results.zip(0_u64..).fold(0, |sum, (result, at)| {
            sum.wrapping_add(u64::from(result.to_bits()).wrapping_mul(2 * at + 1))
        })
    }

    /// The checksums are those of a GPU's results for all mantissas.
    #[test]
    fn all_mantissas_have_the_results_of_a_gpu() {
        let from = |first: f32| (0..ONE).map(move |at| f32::from_bits(first.to_bits() + at));
        assert_eq!(checksum((0..ONE).map(|at| ex2_ftz(at as f32 / ONE as f32))), 0x7514_E0E9_17AB_950E);
        assert_eq!(checksum(from(1.0).map(rcp_ftz)), 0x46F4_2047_E2DD_DF03);
        assert_eq!(checksum(from(1.0).map(rsqrt)), 0xFCB3_3E16_4802_0413);
        assert_eq!(checksum(from(2.0).map(rsqrt)), 0x58A2_2BEF_4804_D2FA);
    }

    #[test]
    fn single_results_of_a_gpu() {
        assert_eq!(
            bits([1.0, -1.0, -126.0, -127.0, 127.999_99, -f32::MIN_POSITIVE].map(ex2_ftz)),
            [0x4000_0000, 0x3F00_0000, 0x0080_0000, 0, 0x7F7F_FFA8, 0x3F80_0000]
        );
        assert_eq!(
            bits([1.0, -1.0, f32::MIN_POSITIVE, 128.0, -126.0, -127.0, -150.0, 127.999_99].map(rcp_ftz)),
            [
                0x3F80_0000,
                0xBF80_0000,
                0x7E80_0000,
                0x3C00_0000,
                0xBC02_0821,
                0xBC01_0204,
                0xBBDA_740D,
                0x3C00_0001
            ]
        );
        assert_eq!(
            bits([1.0, f32::MIN_POSITIVE, f32::from_bits(1 << 22), f32::from_bits(1), 3.4e38].map(rsqrt)),
            [0x3F80_0000, 0x5F00_0000, 0x5F35_04F2, 0x64B5_04F2, 0x1F80_0D9A]
        );
        assert_eq!(bits([128.0, 127.999_99].map(rsqrt)), [0x3DB5_04F2, 0x3DB5_04F4]);
    }

    #[test]
    fn special_arguments() {
        const INF: f32 = f32::INFINITY;
        let (nan, tiny) = (f32::from_bits(0xFFC0_1234), f32::from_bits(1));
        for function in [ex2, ex2_ftz, rcp, rcp_ftz, rsqrt, rsqrt_ftz] {
            assert_eq!(function(nan).to_bits(), 0x7FFF_FFFF);
        }
        for function in [ex2, ex2_ftz] {
            assert_eq!([0.0, -0.0, tiny, -tiny].map(function), [1.0; 4]);
            assert_eq!([INF, 128.0, -INF, -152.0].map(function), [INF, INF, 0.0, 0.0]);
        }
        assert_eq!([-128.0, -148.0, -150.0].map(ex2), [2.0_f32.powi(-128), 2.0 * tiny, 0.0]);
        for function in [rcp, rcp_ftz] {
            assert_eq!(
                bits([0.0, -0.0, INF, -INF].map(function)),
                bits([INF, -INF, 0.0, -0.0]),
                "zeros and infinities"
            );
        }
        let large = 2.0_f32.powi(126);
        assert_eq!(bits([tiny, -tiny].map(rcp_ftz)), bits([INF, -INF]));
        assert_eq!(bits([large, large.next_up(), -f32::MAX].map(rcp_ftz)), bits([1.0 / large, 0.0, -0.0]));
        assert_eq!([tiny, 2.0 * large, large].map(rcp), [INF, 0.5 / large, 1.0 / large]);
        assert_eq!(rcp(f32::MAX), f32::from_bits(1 << 21));
        for function in [rsqrt, rsqrt_ftz] {
            assert_eq!([0.0, -0.0, INF].map(function), [INF, -INF, 0.0]);
            assert_eq!(bits([-1.0, -INF].map(function)), [0x7FFF_FFFF; 2]);
        }
        assert_eq!([tiny, -tiny].map(rsqrt_ftz), [INF, -INF]);
        assert_eq!(rsqrt(-tiny).to_bits(), 0x7FFF_FFFF);
    }

    /// Compares `square` with its definition: the sum of the products of every two bits, without the products
    /// below 2^19.
    #[test]
    fn a_square_omits_small_products() {
        for offset in numbers(4_000).map(|number| number & 0x1_FFFF).chain([0, 0x1_FFFF]) {
            let pairs = (0..17).flat_map(|low| (low..17).map(move |high| (low, high)));
            let expected: u64 = pairs
                .filter(|&(low, high)| offset >> low & offset >> high & 1 == 1)
                .map(|(low, high)| 1 << (low + high + u32::from(low != high)))
                .filter(|&product: &u64| product >= 1 << 19)
                .sum();
            assert_eq!(u64::from(square(offset)) << 19, expected, "{offset:#x}");
        }
    }

    /// The checksums cover the arguments of one octave (a factor of two). For an argument in another octave,
    /// the result must be the same, scaled by a power of two.
    #[test]
    fn other_octaves_scale_the_results() {
        for number in numbers(50_000) {
            let (mantissa, power) = (number & (ONE - 1), (number >> 23) as i32 % 60 - 30);
            let scale = 2.0_f32.powi(power);
            let fraction = mantissa as f32 / ONE as f32;
            let x = fraction + power as f32;
            if x - power as f32 == fraction && power >= 0 {
                assert_eq!(ex2_ftz(x), scale * ex2_ftz(fraction), "2^{x}");
            }
            let [one, two] = [1.0_f32, 2.0].map(|first| f32::from_bits(first.to_bits() + mantissa));
            assert_eq!(rcp_ftz(one * scale), rcp_ftz(one) / scale, "1 / ({one} * {scale})");
            assert_eq!(rsqrt(one * scale * scale), rsqrt(one) / scale, "{one} * {scale}^2");
            assert_eq!(rsqrt(two * scale * scale), rsqrt(two) / scale, "{two} * {scale}^2");
        }
    }

    /// For a negative argument `-n - f`, the GPU computes `2^(-n - 1)` times `2^(1 - f)`. Instead of `1 - f`,
    /// it uses the ones' complement of `f`.
    #[test]
    fn negative_exponents_use_the_complement() {
        for number in numbers(20_000).filter(|number| number & 0x7F_FFFF != 0) {
            let (fraction, whole) = (number & (ONE - 1), number >> 29);
            // `x` has only 24 significant bits. If its integer part is not 0, it cannot represent the low
            // bits of `fraction`.
            let x = -(whole as f32) - fraction as f32 / ONE as f32;
            let fixed = (f64::from(-x) * f64::from(ONE)) as u32;
            if fixed.is_multiple_of(ONE) {
                continue;
            }
            let complement = (ONE - 1 - fixed % ONE) as f32 / ONE as f32;
            assert_eq!(ex2_ftz(x), 0.5_f32.powi((fixed / ONE) as i32 + 1) * ex2_ftz(complement), "2^{x}");
        }
    }

    #[test]
    fn errors_are_within_the_bounds_of_ptx() {
        for x in numbers(100_000).map(f32::from_bits).filter(|x| x.is_normal()) {
            let wide = f64::from(x);
            let relative = |got: f32, exact: f64| ((f64::from(got) - exact) / exact).abs();
            if x.abs() < 125.0 {
                assert!(relative(ex2(x), libm::exp2(wide)) <= 2.0_f64.powi(-22), "2^{x:e}");
            }
            if x.abs() < 8.0e37 {
                assert!(relative(rcp(x), 1.0 / wide) <= 2.0_f64.powi(-23), "1 / {x:e}");
            }
            let size = wide.abs();
            assert!(relative(rsqrt(x.abs()), 1.0 / size.sqrt()) <= 2.0_f64.powf(-22.9), "rsqrt({x:e})");
        }
    }

    /// The checksums are those of a GPU's results for all mantissas.
    #[test]
    fn all_mantissas_have_the_logarithms_of_a_gpu() {
        let from = |first: f32| (0..ONE).map(move |at| f32::from_bits(first.to_bits() + at));
        assert_eq!(checksum(from(1.0).map(lg2)), 0x0324_1E33_A86B_FA9F);
        assert_eq!(checksum(from(0.5).map(lg2)), 0x2A8B_6CCA_AE2B_65BC);
    }

    /// Of all powers of two, only 1 is a special case with an exact logarithm. The logarithms of 0.5 and 0.25
    /// are not exact, because the constant term of the first polynomial is not zero.
    #[test]
    fn single_logarithms_of_a_gpu() {
        assert_eq!(bits([1.0, 2.0, 8.0, 2.0_f32.powi(127)].map(lg2)), bits([0.0, 1.0, 3.0, 127.0]));
        let (above, below) = (1.0_f32.next_up(), 1.0_f32.next_down());
        assert_eq!(bits([above, below].map(lg2)), [0x3495_F600, 0xB24B_4000]);
        assert_eq!(bits([0.5, 0.25].map(lg2)), [0xBF7F_FFFE, 0xBFFF_FFFF]);
    }

    #[test]
    fn logarithms_of_special_arguments() {
        const INF: f32 = f32::INFINITY;
        let (nan, tiny) = (f32::from_bits(0xFFC0_1234), f32::from_bits(1));
        for function in [lg2, lg2_ftz] {
            assert_eq!([0.0, -0.0, INF].map(function), [-INF, -INF, INF]);
            assert_eq!(bits([-1.0, -INF, -f32::MAX, nan, -nan].map(function)), [0x7FFF_FFFF; 5]);
            assert_eq!(function(1.0).to_bits(), 0);
        }
        // The instruction with `.ftz` reads subnormal numbers as zeros.
        assert_eq!([tiny, -tiny, f32::MIN_POSITIVE.next_down()].map(lg2_ftz), [-INF; 3]);
        assert_eq!(lg2(-tiny).to_bits(), 0x7FFF_FFFF);
        assert_eq!([tiny, 2.0 * tiny].map(lg2), [-149.0, -148.0]);
        for number in numbers(20_000).map(|number| number & (ONE - 1)).filter(|&number| number != 0) {
            let x = f32::from_bits(number);
            assert_eq!(lg2(x), lg2(x * TWO_24) - 24.0, "{x:e}");
        }
    }

    /// The logarithm of any argument is an integer plus the logarithm of an argument from 0.5 to 2 with the
    /// same mantissa. The sum is truncated.
    #[test]
    fn other_octaves_add_to_the_logarithm() {
        for x in numbers(100_000).map(|number| f32::from_bits(number >> 1)).filter(|x| x.is_normal()) {
            let exponent = (x.to_bits() >> 23) as i32 - 127;
            let octave = if exponent >= 0 { 1.0_f32 } else { 0.5 };
            let whole = if exponent >= 0 { exponent } else { exponent + 1 };
            let y = lg2(f32::from_bits(octave.to_bits() + (x.to_bits() & (ONE - 1))));
            let sum = f64::from(whole) + f64::from(y);
            // Clearing the low 29 bits of an f64 rounds it to 24 significant bits, towards zero.
            assert_eq!(lg2(x), f64::from_bits(sum.to_bits() >> 29 << 29) as f32, "lg2({x:e})");
        }
    }

    #[test]
    fn errors_of_logarithms_are_within_the_bounds_of_ptx() {
        let all = numbers(100_000).map(|number| f32::from_bits(number >> 1)).filter(|x| x.is_normal());
        let near_one = numbers(100_000).map(|number| f32::from_bits(0.5_f32.to_bits() + (number >> 8)));
        for x in all.chain(near_one) {
            let exact = libm::log2(f64::from(x));
            let size = if (0.5..=2.0).contains(&x) { 1.0 } else { exact.abs() };
            assert!((f64::from(lg2(x)) - exact).abs() <= size * 2.0_f64.powi(-22), "lg2({x:e})");
        }
    }
}
