//! The elementwise maximum of two pairs of 16-bit floats, computed with integer instructions. Each pair is
//! stored in one 32-bit word.

/// Returns the elementwise maximum of two words, each of two f16 or two bf16 values.
///
/// If a float is negative, the function first flips all its bits except the sign bit. As signed 16-bit
/// integers, the resulting bits have the same order as the floats. The function computes the integer maximum,
/// and then reverses the flip.
#[inline(always)]
pub(crate) fn max_halves(a: u32, b: u32) -> u32 {
    let flip = |word: u32| word ^ ((word >> 15 & 0x0001_0001) * 0x7fff);
    let (a, b) = (flip(a) as i32, flip(b) as i32);
    flip(a.max(b) as u32 & 0xffff_0000 | (a << 16).max(b << 16) as u32 >> 16)
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn halves_are_ordered_as_floats() {
        let sorted = [
            f16::NEG_INFINITY,
            f16::MIN,
            f16::NEG_ONE,
            f16::from_bits(0x8001),
            f16::ZERO,
            f16::ONE,
            f16::INFINITY,
        ];
        for (i, a) in sorted.map(f16::to_bits).into_iter().map(u32::from).enumerate() {
            for (j, b) in sorted.map(f16::to_bits).into_iter().map(u32::from).enumerate() {
                let larger = if i > j { a } else { b };
                assert_eq!(max_halves(a | b << 16, b | a << 16), larger | larger << 16, "{a:#x}, {b:#x}");
            }
        }
        let pair = f32::to_bits;
        assert_eq!(max_halves(pair(-3.0), pair(2.0)), pair(2.0), "bf16, with zeros below");
    }
}
