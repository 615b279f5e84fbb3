//! Conversions between f32 and the 8-bit floats e4m3 and e5m2, computed with integer instructions.
//!
//! The CPU executor uses these functions, and so do GPUs before sm_89, which have no instructions for 8-bit
//! floats.

/// An 8-bit float format.
#[derive(Clone, Copy)]
pub struct Format {
    /// Number of mantissa bits.
    mantissa: u32,
    /// Bias of the exponent.
    bias: u32,
    /// Code of the largest finite value.
    max: u32,
    /// Code of the infinity. If the format has no infinity, the code of the NaN.
    special: u32,
}

/// `float8_e4m3fn`: it has NaNs, but no infinities.
pub const E4M3: Format = Format { mantissa: 3, bias: 7, max: 0x7e, special: 0x7f };
/// `float8_e5m2`.
pub const E5M2: Format = Format { mantissa: 2, bias: 15, max: 0x7b, special: 0x7c };

/// The code that the instruction `cvt` returns for a NaN, in both formats.
const NAN: u32 = 0x7f;
/// Number of mantissa bits of an f32, and the bias of its exponent.
const MANTISSA: u32 = 23;
const BIAS: u32 = 127;
/// Mask of all bits of an f32 except the sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

impl Format {
    /// Number of mantissa bits that an f32 has in addition to the mantissa bits of this format.
    const fn dropped(self) -> u32 {
        MANTISSA - self.mantissa
    }

    /// The code of the value 1, minus the upper bits of the f32 1.0. The difference is negative.
    const fn rebias(self) -> u32 {
        (BIAS - self.bias) << self.mantissa
    }

    /// The largest finite value.
    pub const fn largest(self) -> f32 {
        f32::from_bits((self.max + self.rebias()) << self.dropped())
    }

    /// Converts to this format and rounds to nearest even, as the instruction `cvt.rn.satfinite` does. Values
    /// beyond the largest finite value, even infinities, become the largest finite value.
    #[inline(always)]
    pub const fn code(self, value: f32) -> u8 {
        let (bits, largest) = (value.to_bits(), self.largest().to_bits());
        let (sign, magnitude) = (bits >> 24 & 0x80, bits & MAGNITUDE);
        let finite = if magnitude > largest { largest } else { magnitude };

        // Add half a unit in the last place, or slightly less if the last bit is 0. The shift then rounds to
        // nearest even. A carry out of the mantissa increments the exponent.
        let even = finite >> self.dropped() & 1;
        let half = (1 << (self.dropped() - 1)) - 1;
        let normal = ((finite + half + even) >> self.dropped()).wrapping_sub(self.rebias());

        // One unit in the last place of `shift` is the smallest subnormal number of this format. The f32
        // addition therefore rounds to a multiple of this number. The bits of the sum, minus the bits of
        // `shift`, are the multiple.
        let smallest_normal = (1 + BIAS - self.bias) << MANTISSA;
        let shift = f32::from_bits(smallest_normal + (self.dropped() << MANTISSA));
        let subnormal = (f32::from_bits(finite) + shift).to_bits() - shift.to_bits();

        let code = if finite < smallest_normal { subnormal } else { normal };
        (if magnitude > f32::INFINITY.to_bits() { NAN } else { sign | code }) as u8
    }

    /// Converts a code of this format to f32, which is exact.
    #[inline(always)]
    pub const fn value(self, code: u8) -> f32 {
        let (sign, magnitude) = ((code as u32 & 0x80) << 24, code as u32 & 0x7f);
        if magnitude >= self.special {
            let is_infinity = magnitude == self.special && self.special != NAN;
            let magnitude = if is_infinity { f32::INFINITY.to_bits() } else { MAGNITUDE };
            return f32::from_bits(sign | magnitude);
        }
        // The shifted code is an f32 with the same mantissa, but with a smaller exponent. A subnormal code
        // becomes a subnormal f32. The product corrects the exponent, and it is exact.
        let factor = f32::from_bits((2 * BIAS - self.bias) << MANTISSA);
        let value = f32::from_bits(magnitude << self.dropped()) * factor;
        f32::from_bits(sign | value.to_bits())
    }
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests;
