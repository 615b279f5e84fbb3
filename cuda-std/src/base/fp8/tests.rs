//! Tests of the conversions against f64 values of all codes.
use super::*;

/// Returns the value of a code below [`Format::special`], computed from its fields in f64.
fn reference(format: Format, code: u8) -> f64 {
    let magnitude = i32::from(code & 0x7f);
    let (exponent, mantissa) = (magnitude >> format.mantissa, magnitude & ((1 << format.mantissa) - 1));
    let leading = if exponent == 0 { 0 } else { 1 << format.mantissa };
    let power = exponent.max(1) - format.bias as i32 - format.mantissa as i32;
    let value = f64::from(leading + mantissa) * f64::from(power).exp2();
    if code < 0x80 { value } else { -value }
}

/// Returns the code of the nearest value, found among all finite codes. If two values are equally near, it is
/// the even code.
fn nearest(format: Format, value: f32) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    let (sign, wanted) = (u8::from(value.is_sign_negative()) << 7, f64::from(value.abs()).min(1e6));
    let distance = |code: &u8| (reference(format, *code) - wanted).abs();
    let codes = 0..=format.max as u8;
    let code = codes.min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
    sign | code.expect("a code")
}

const FORMATS: [(&str, Format); 2] = [("e4m3", E4M3), ("e5m2", E5M2)];

#[test]
fn every_code_is_decoded() {
    for (name, format) in FORMATS {
        for code in 0..=u8::MAX {
            let (value, magnitude) = (format.value(code), u32::from(code & 0x7f));
            assert_eq!(value.is_sign_negative(), code >= 0x80, "{name} {code:#x}");
            if magnitude < format.special {
                assert_eq!(f64::from(value), reference(format, code), "{name} {code:#x}");
            } else {
                assert_eq!(value.is_infinite(), name == "e5m2" && magnitude == 0x7c, "{name} {code:#x}");
                assert_eq!(value.is_nan(), !value.is_infinite(), "{name} {code:#x}");
            }
        }
    }
    assert_eq!([E4M3, E5M2].map(Format::largest), [448.0, 57_344.0]);
}

#[test]
fn every_finite_value_is_its_own_code() {
    for (name, format) in FORMATS {
        for code in (0..=u8::MAX).filter(|code| u32::from(code & 0x7f) <= format.max) {
            assert_eq!(format.code(format.value(code)), code, "{name} {code:#x}");
        }
    }
}

/// Checks the values at all boundaries between two codes, and the three f32 on each side of a boundary.
#[test]
fn boundaries_round_to_nearest_even() {
    for (name, format) in FORMATS {
        for code in 0..format.max as u8 {
            let [low, high] = [code, code + 1].map(|code| reference(format, code));
            let middle = ((low + high) / 2.0) as f32;
            assert_eq!(f64::from(middle), (low + high) / 2.0, "f32 has the value between {low} and {high}");
            for bits in middle.to_bits() - 3..=middle.to_bits() + 3 {
                let (value, expected) = (f32::from_bits(bits), nearest(format, f32::from_bits(bits)));
                assert_eq!(format.code(value), expected, "{name} {value:e}");
                assert_eq!(format.code(-value), expected | 0x80, "{name} {:e}", -value);
            }
        }
    }
}

/// Checks one f32 in each 16,381, of both signs, and special values. The step is a prime, so that all low
/// bits occur.
#[test]
fn values_round_to_the_nearest_code() {
    for (name, format) in FORMATS {
        let special = [f32::INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1), 0.0];
        let random = (0..=u32::MAX).step_by(16_381).map(f32::from_bits);
        for value in special.iter().flat_map(|&value| [value, -value]).chain(random) {
            assert_eq!(format.code(value), nearest(format, value), "{name} {value:e}");
        }
    }
}
