//! Tests the conversions between f32, f16 and bf16 for all 16-bit values, and the arithmetic for special
//! values such as NaN.
use half::f16;

use super::*;
use crate::base::narrow::NAN_16;

#[test]
fn bf16_rounds_to_nearest_even() {
    let exact = bf16_to_f32;
    for bits in (0..=u16::MAX).filter(|&bits| !exact(bits).is_nan()) {
        assert_eq!(f32_to_bf16(exact(bits)), bits, "{bits:#06x}");
        let (tie, up) = (exact(bits).to_bits() | 0x8000, bits.wrapping_add(1));
        if exact(bits).is_finite() {
            assert_eq!(f32_to_bf16(f32::from_bits(tie - 1)), bits, "below the tie after {bits:#06x}");
            let even = if bits & 1 == 0 { bits } else { up };
            assert_eq!(f32_to_bf16(f32::from_bits(tie)), even, "the tie after {bits:#06x}");
            assert_eq!(f32_to_bf16(f32::from_bits(tie + 1)), up, "above the tie after {bits:#06x}");
        }
    }
    assert_eq!([f32::NAN, -f32::NAN, f32::from_bits(0x7F80_0001)].map(f32_to_bf16), [NAN_16; 3]);
}

#[test]
fn f16_survives_a_round_trip() {
    for bits in (0..=u16::MAX).filter(|&bits| !f16::from_bits(bits).is_nan()) {
        assert_eq!(f32_to_f16(f16_to_f32(bits)), bits, "{bits:#06x}");
    }
    assert_eq!(f32_to_f16(f32::NAN), NAN_16);
    assert_eq!(f32_to_f16(65_520.0), f16::INFINITY.to_bits());
    assert_eq!(f16x2_to_f32x2(f32x2_to_f16x2(1.5, -2.0)), [1.5, -2.0]);
    assert_eq!(f32x2_to_bf16x2(1.0, -2.0), 0xC000_3F80);
    assert_eq!(bf16x2_to_f32x2(0xC000_3F80), [1.0, -2.0]);
}

#[test]
fn approximate_functions_at_their_edges() {
    assert_eq!([rsqrt(4.0), rsqrt(0.0), rsqrt(-0.0)], [0.5, f32::INFINITY, f32::NEG_INFINITY]);
    assert!(rsqrt(-1.0).is_nan() && lg2(-1.0).is_nan());
    assert_eq!([ex2(3.0), ex2(-f32::INFINITY), lg2(8.0)], [8.0, 0.0, 3.0]);
    assert_eq!([tanh(100.0), rcp(4.0)], [1.0, 0.25]);
    assert_eq!(fma(1.0 + f32::EPSILON, 1.0 - f32::EPSILON, -1.0), -(f32::EPSILON * f32::EPSILON));
}

#[test]
fn directed_and_saturated_products() {
    assert_eq!(
        [fma_sat(2.0, 3.0, 0.5), fma_sat(-2.0, 3.0, 0.5), fma_sat(f32::NAN, 1.0, 1.0)],
        [1.0, 0.0, 0.0]
    );
    assert_eq!(fma_sat(0.5, 0.5, 0.25), 0.5);
    let big = 12_582_913.0;
    assert_eq!(
        [fma_rm(0.999, 1.0, big), fma_rm(1.0, 1.0, big), fma_rm(-1e-30, 1.0, big)],
        [big, big + 1.0, big - 1.0]
    );
    assert_eq!(fma_rm(1.0, 1.0, -1e-30), 1.0_f32.next_down());
    let tiny = f32::from_bits(1);
    assert_eq!(
        [ex2_ftz(-126.0), ex2_ftz(-127.0), rcp_ftz(tiny), rcp_ftz(f32::MAX)],
        [f32::MIN_POSITIVE, 0.0, f32::INFINITY, 0.0]
    );
}
