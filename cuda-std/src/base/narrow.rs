//! Conversions from f32 to the 16-bit floats on the host, with the NaN of the PTX instruction `cvt.rn`.
use half::f16;

/// Bits of the NaN that the PTX instruction `cvt.rn` returns for f16 and for bf16.
pub const NAN_16: u16 = 0x7FFF;

#[inline]
pub fn f32_to_f16(x: f32) -> u16 {
    if x.is_nan() { NAN_16 } else { f16::from_f32(x).to_bits() }
}

/// Converts f32 to bf16, rounding to nearest even. The function adds a rounding term to the f32 bits (as an
/// integer) and then drops the low 16 bits.
///
/// If the upper 16 bits are an even integer, the term is 0x7FFF, just below half a bf16 ulp. If they are odd,
/// the term is 0x8000, exactly half an ulp. A carry into the upper 16 bits increments the result by one ulp.
#[inline]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() { NAN_16 } else { ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16 }
}
