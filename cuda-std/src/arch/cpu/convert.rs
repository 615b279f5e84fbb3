//! Conversions from f32 to 16-bit and 8-bit floats, conversions of 16-bit floats to f32, and arithmetic on
//! pairs of 16-bit floats.
use half::f16;

use crate::base::fp8::{E4M3, E5M2};

pub use crate::base::narrow::{f32_to_bf16, f32_to_f16};

#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[inline]
pub fn f32x2_to_f16x2(low: f32, high: f32) -> u32 {
    u32::from(f32_to_f16(low)) | u32::from(f32_to_f16(high)) << 16
}

#[inline]
pub fn f32x2_to_bf16x2(low: f32, high: f32) -> u32 {
    u32::from(f32_to_bf16(low)) | u32::from(f32_to_bf16(high)) << 16
}

#[inline]
pub fn f32x2_to_e4m3x2(low: f32, high: f32) -> u16 {
    u16::from_le_bytes([E4M3.code(low), E4M3.code(high)])
}

#[inline]
pub fn f32x2_to_e5m2x2(low: f32, high: f32) -> u16 {
    u16::from_le_bytes([E5M2.code(low), E5M2.code(high)])
}

macro_rules! pairs {
    ($($name:ident: $unpack:ident, $pack:ident, $op:tt;)*) => { $(
        #[inline]
        pub fn $name(a: u32, b: u32) -> u32 {
            let ([a, b], [c, d]) = ($unpack(a), $unpack(b));
            $pack(a $op c, b $op d)
        }
    )* };
}
pairs! {
    add_f16x2: f16x2_to_f32x2, f32x2_to_f16x2, +;
    mul_f16x2: f16x2_to_f32x2, f32x2_to_f16x2, *;
    add_bf16x2: bf16x2_to_f32x2, f32x2_to_bf16x2, +;
    mul_bf16x2: bf16x2_to_f32x2, f32x2_to_bf16x2, *;
}

#[inline]
pub fn f16x2_to_f32x2(bits: u32) -> [f32; 2] {
    [f16_to_f32(bits as u16), f16_to_f32((bits >> 16) as u16)]
}

#[inline]
pub fn bf16x2_to_f32x2(bits: u32) -> [f32; 2] {
    [bf16_to_f32(bits as u16), bf16_to_f32((bits >> 16) as u16)]
}

/// Emulate the PTX instructions `max.f16x2` and `max.bf16x2`.
pub(crate) use crate::base::halves::{max_halves as max_f16x2, max_halves as max_bf16x2};
