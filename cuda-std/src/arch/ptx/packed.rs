//! Arithmetic on pairs of 16-bit floats. Each pair is stored in one 32-bit word.
//!
//! A result has the same bits as if the operands were converted to f32, computed in f32, and rounded to the
//! 16-bit type.
use core::arch::asm;

use super::convert::{bf16x2_to_f32x2, f32x2_to_bf16x2};
use crate::base::halves::max_halves;

macro_rules! f16_pairs {
    ($($name:ident: $instruction:literal;)*) => { $(
        #[inline(always)]
        pub fn $name(a: u32, b: u32) -> u32 {
            let result: u32;
            // SAFETY: the instruction only computes on registers.
            unsafe {
                asm!(
                    concat!($instruction, " {}, {}, {};"),
                    out(reg32) result, in(reg32) a, in(reg32) b,
                    options(pure, nomem, nostack)
                );
            }
            result
        }
    )* };
}
f16_pairs! {
    add_f16x2: "add.rn.f16x2";
    mul_f16x2: "mul.rn.f16x2";
}

/// Returns `a * b + c` elementwise. Each 32-bit word contains two bf16 values. [`add_bf16x2`] and
/// [`mul_bf16x2`] call this function, because sm_80 has a bf16 `fma` but no bf16 `add` or `mul`.
#[inline(always)]
fn fma_bf16x2(a: u32, b: u32, c: u32) -> u32 {
    let result: u32;
    // SAFETY: the instruction accesses only registers. It needs sm_80, which the callers check.
    unsafe {
        asm!(
            "fma.rn.bf16x2 {}, {}, {}, {};",
            out(reg32) result, in(reg32) a, in(reg32) b, in(reg32) c,
            options(pure, nomem, nostack)
        );
    }
    result
}

#[inline(always)]
pub fn add_bf16x2(a: u32, b: u32) -> u32 {
    if cfg!(not(target_feature = "sm_80")) {
        let ([a, b], [c, d]) = (bf16x2_to_f32x2(a), bf16x2_to_f32x2(b));
        return f32x2_to_bf16x2(a + c, b + d);
    }
    const ONES: u32 = 0x3F80_3F80;
    fma_bf16x2(a, ONES, b)
}

#[inline(always)]
pub fn mul_bf16x2(a: u32, b: u32) -> u32 {
    if cfg!(not(target_feature = "sm_80")) {
        let ([a, b], [c, d]) = (bf16x2_to_f32x2(a), bf16x2_to_f32x2(b));
        return f32x2_to_bf16x2(a * c, b * d);
    }
    // Adding -0 preserves the sign of a zero product.
    const MINUS_ZEROS: u32 = 0x8000_8000;
    fma_bf16x2(a, b, MINUS_ZEROS)
}

macro_rules! max_pairs {
    ($($name:ident: $instruction:literal;)*) => { $(
        /// Returns the elementwise maximum of two pairs of 16-bit floats.
        #[inline(always)]
        pub fn $name(a: u32, b: u32) -> u32 {
            if cfg!(not(target_feature = "sm_80")) {
                return max_halves(a, b);
            }
            let pair: u32;
            // SAFETY: the instruction accesses only registers. It needs sm_80. On sm_75, the function has
            // returned before this line.
            unsafe {
                asm!(concat!($instruction, " {}, {}, {};"), out(reg32) pair, in(reg32) a, in(reg32) b,
                    options(pure, nomem, nostack))
            };
            pair
        }
    )* };
}
max_pairs! {
    max_f16x2: "max.f16x2";
    max_bf16x2: "max.bf16x2";
}
