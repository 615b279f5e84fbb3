//! The 8-bit floats `e4m3` and `e5m2` (`torch.float8_e4m3fn` and `torch.float8_e5m2`).
//!
//! Kernels convert f32 values to 8-bit floats in pairs or groups of four, because one instruction converts
//! two values. On GPUs before sm_89 and on the CPU executor, integer instructions compute the same bits.
use core::fmt;

use crate::arch;
use crate::base::fp8::{E4M3, E5M2, Format};

/// An 8-bit float. Conversions from f32 round to nearest even. They saturate: values beyond the largest
/// finite value, even infinities, become the largest finite value. A NaN stays a NaN.
pub trait Fp8: Copy + Send + Sync + 'static {
    /// The largest finite value.
    const MAX: f32;

    /// Converts from f32 with one rounding and saturation.
    fn from_f32(value: f32) -> Self;
    /// Converts to f32 exactly.
    fn to_f32(self) -> f32;
    /// Returns the 8-bit float with these bits.
    fn from_bits(bits: u8) -> Self;
    /// Returns the bits.
    fn to_bits(self) -> u8;
    /// Converts two f32 values. The low byte of the result has the bits of `low`.
    fn pack2(low: f32, high: f32) -> u16;

    /// Converts four f32 values. The bytes of the result have the bits in memory order.
    #[inline(always)]
    fn pack4([a, b, c, d]: [f32; 4]) -> u32 {
        u32::from(Self::pack2(a, b)) | u32::from(Self::pack2(c, d)) << 16
    }
}

macro_rules! fp8 {
    ($($(#[$doc:meta])* $name:ident: $format:ident, $pack:ident;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            const FORMAT: Format = $format;

            /// Returns the 8-bit float with these bits. In a constant, call this function instead of
            /// [`Fp8::from_bits`].
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }
        }

        impl Fp8 for $name {
            const MAX: f32 = $format.largest();
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                Self(Self::pack2(value, 0.0) as u8)
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                Self::FORMAT.value(self.0)
            }
            #[inline(always)]
            fn from_bits(bits: u8) -> Self {
                Self(bits)
            }
            #[inline(always)]
            fn to_bits(self) -> u8 {
                self.0
            }
            #[inline(always)]
            fn pack2(low: f32, high: f32) -> u16 {
                arch::$pack(low, high)
            }
        }

        /// Compares the values, as floats do: a NaN differs from itself, and -0 equals 0.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }
    )* };
}
fp8! {
    /// `float8_e4m3fn`: 4 exponent bits and 3 mantissa bits. The largest value is 448, and the smallest
    /// normal value is 2^-6. There are NaNs, but no infinities.
    E4m3: E4M3, f32x2_to_e4m3x2;
    /// `float8_e5m2`: 5 exponent bits and 2 mantissa bits. The largest finite value is 57,344, and the
    /// smallest normal value is 2^-14.
    E5m2: E5M2, f32x2_to_e5m2x2;
}
