//! Conversions from f32 to 16-bit and 8-bit floats, and conversions of 16-bit floats to f32.
use core::arch::asm;

use crate::base::fp8::{E4M3, E5M2, Format};

#[inline(always)]
pub fn f32_to_f16(value: f32) -> u16 {
    let half: u16;
    // SAFETY: the instruction only computes on registers.
    unsafe {
        asm!("cvt.rn.f16.f32 {}, {};", out(reg16) half, in(reg32) value, options(pure, nomem, nostack))
    };
    half
}

#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    let value: f32;
    // SAFETY: the instruction only computes on registers.
    unsafe { asm!("cvt.f32.f16 {}, {};", out(reg32) value, in(reg16) half, options(pure, nomem, nostack)) };
    value
}

#[inline(always)]
pub fn f32x2_to_f16x2(low: f32, high: f32) -> u32 {
    if cfg!(not(target_feature = "sm_80")) {
        return u32::from(f32_to_f16(low)) | u32::from(f32_to_f16(high)) << 16;
    }
    let pair: u32;
    // SAFETY: the instruction accesses only registers. It needs sm_80. On sm_75, the function has returned
    // before this line.
    unsafe {
        asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(reg32) pair, in(reg32) high, in(reg32) low, options(pure, nomem, nostack))
    };
    pair
}

#[inline(always)]
pub fn f16x2_to_f32x2(pair: u32) -> [f32; 2] {
    [f16_to_f32(pair as u16), f16_to_f32((pair >> 16) as u16)]
}

/// Converts f32 to bf16, rounding to nearest even. A NaN becomes 0x7fff, which is also the result of the PTX
/// instruction `cvt.rn`.
///
/// On sm_75, which has no bf16 instructions, the function uses integer arithmetic.
#[inline(always)]
pub fn f32_to_bf16(value: f32) -> u16 {
    if cfg!(target_feature = "sm_80") {
        return f32x2_to_bf16x2(value, 0.0) as u16;
    }
    let bits = value.to_bits();
    let rounded = (bits + (0x7fff + (bits >> 16 & 1))) >> 16;
    if value.is_nan() { 0x7fff } else { rounded as u16 }
}

#[inline(always)]
pub fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

#[inline(always)]
pub fn f32x2_to_bf16x2(low: f32, high: f32) -> u32 {
    if cfg!(not(target_feature = "sm_80")) {
        return u32::from(f32_to_bf16(low)) | u32::from(f32_to_bf16(high)) << 16;
    }
    let pair: u32;
    // SAFETY: the instruction accesses only registers. It needs sm_80. On sm_75, the function has returned
    // before this line.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {}, {}, {};", out(reg32) pair, in(reg32) high, in(reg32) low, options(pure, nomem, nostack))
    };
    pair
}

#[inline(always)]
pub fn bf16x2_to_f32x2(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}

macro_rules! fp8_pairs {
    ($($name:ident: $format:expr, $instruction:literal;)*) => { $(
        #[inline(always)]
        pub fn $name(low: f32, high: f32) -> u16 {
            if cfg!(not(target_feature = "sm_89")) {
                const FORMAT: Format = $format;
                return u16::from_le_bytes([FORMAT.code(low), FORMAT.code(high)]);
            }
            let pair: u16;
            // SAFETY: the instruction accesses only registers. It needs sm_89. On older architectures, the
            // function has returned before this line.
            unsafe {
                asm!(
                    concat!($instruction, " {}, {}, {};"),
                    out(reg16) pair,
                    in(reg32) high,
                    in(reg32) low,
                    options(pure, nomem, nostack),
                )
            };
            pair
        }
    )* };
}
fp8_pairs! {
    f32x2_to_e4m3x2: E4M3, "cvt.rn.satfinite.e4m3x2.f32";
    f32x2_to_e5m2x2: E5M2, "cvt.rn.satfinite.e5m2x2.f32";
}
