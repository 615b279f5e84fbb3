//! The element types of tensors (the trait `Elem`), and vectors of f32 values (the trait `F32Vec`).
//!
//! A kernel is generic over an element type that implements [`Elem`], and computes in f32. `Elem` converts a
//! pack (one 16-byte vector of elements) to f32 values and back.
use half::{bf16, f16};

use crate::arch;

/// The elements of one pack (a 16-byte vector) as f32 values: `[f32; 4]` for f32, `[f32; 8]` for f16 and
/// bf16.
pub trait F32Vec: Copy {
    /// Number of lanes.
    const LEN: u32;
    /// Returns a vector with `value` in every lane.
    fn splat(value: f32) -> Self;
    /// Returns a vector with `f(i)` in lane `i`.
    fn from_fn(f: impl FnMut(usize) -> f32) -> Self;
    /// Returns lane `i`.
    fn get(&self, i: usize) -> f32;

    /// Applies `f` to every lane.
    #[inline(always)]
    fn map(self, mut f: impl FnMut(f32) -> f32) -> Self {
        Self::from_fn(|i| f(self.get(i)))
    }
    /// Applies `f` to each pair of lanes of `self` and `other`.
    #[inline(always)]
    fn zip(self, other: Self, mut f: impl FnMut(f32, f32) -> f32) -> Self {
        Self::from_fn(|i| f(self.get(i), other.get(i)))
    }
    /// Returns the sum of the lanes, added as a balanced tree.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = self;
        let mut width = Self::LEN as usize / 2;
        while width > 0 {
            lanes = Self::from_fn(|i| lanes.get(i) + lanes.get((i + width) % Self::LEN as usize));
            width /= 2;
        }
        lanes.get(0)
    }
}

impl<const N: usize> F32Vec for [f32; N] {
    const LEN: u32 = N as u32;
    #[inline(always)]
    fn splat(value: f32) -> Self {
        [value; N]
    }
    #[inline(always)]
    fn from_fn(f: impl FnMut(usize) -> f32) -> Self {
        core::array::from_fn(f)
    }
    #[inline(always)]
    fn get(&self, i: usize) -> f32 {
        self[i]
    }
}

/// An element type of tensors: f32, f16 or bf16. Conversions from f32 round to nearest even.
pub trait Elem: Copy + Send + Sync + 'static {
    /// The elements of one pack (a 16-byte vector) as f32 values.
    type F32Vec: F32Vec;
    /// Negative infinity, the neutral element of a maximum.
    const NEG_INFINITY: Self;

    /// Converts from f32 with one rounding.
    fn from_f32(value: f32) -> Self;
    /// Converts a compile-time constant from f32. The compiler can evaluate this function at compile time.
    /// The compiler cannot evaluate [`Elem::from_f32`], because this function uses inline assembly.
    fn constant(value: f32) -> Self;
    /// Converts to f32 exactly.
    fn to_f32(self) -> f32;
    /// Converts the elements of a 16-byte vector (as four 32-bit words) to f32, in memory order.
    fn unpack(words: [u32; 4]) -> Self::F32Vec;
    /// Rounds each f32 value once to this type, and packs the results into a 16-byte vector (four 32-bit
    /// words).
    fn pack(lanes: Self::F32Vec) -> [u32; 4];
    /// Returns the elementwise maximum of two 32-bit words. A word contains one f32 or two 16-bit elements.
    /// If one element of a pair is NaN, the result is either element of this pair.
    fn max_words(a: u32, b: u32) -> u32;
    /// Returns the element whose bits are the low `size_of::<Self>()` bytes of `word`.
    fn from_bits(word: u32) -> Self;
    /// Returns the bits of the element, zero-extended to 32 bits.
    fn to_bits(self) -> u32;

    /// Returns the elementwise sum of two 32-bit words (one f32 or two 16-bit elements each). Each sum is
    /// rounded once.
    fn add_words(a: u32, b: u32) -> u32;
    /// Returns the elementwise product of two 32-bit words (one f32 or two 16-bit elements each). Each
    /// product is rounded once.
    fn mul_words(a: u32, b: u32) -> u32;

    /// Returns a pack (16-byte vector) with the compile-time constant `value` in every element.
    #[inline(always)]
    fn splat(value: f32) -> [u32; 4] {
        let bits = Self::constant(value).to_bits();
        [if size_of::<Self>() == 2 { bits | bits << 16 } else { bits }; 4]
    }

    /// Rounds `value` to this element type and converts the rounded value back to f32, as if it were stored
    /// with this type and loaded again.
    #[inline(always)]
    fn round(value: f32) -> f32 {
        Self::from_f32(value).to_f32()
    }
}

impl Elem for f32 {
    type F32Vec = [f32; 4];
    const NEG_INFINITY: Self = f32::NEG_INFINITY;
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn constant(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn unpack(words: [u32; 4]) -> [f32; 4] {
        words.map(f32::from_bits)
    }
    #[inline(always)]
    fn pack(lanes: [f32; 4]) -> [u32; 4] {
        lanes.map(f32::to_bits)
    }
    #[inline(always)]
    fn max_words(a: u32, b: u32) -> u32 {
        f32::from_bits(a).max(f32::from_bits(b)).to_bits()
    }
    #[inline(always)]
    fn from_bits(word: u32) -> Self {
        f32::from_bits(word)
    }
    #[inline(always)]
    fn to_bits(self) -> u32 {
        f32::to_bits(self)
    }
    #[inline(always)]
    fn add_words(a: u32, b: u32) -> u32 {
        (f32::from_bits(a) + f32::from_bits(b)).to_bits()
    }
    #[inline(always)]
    fn mul_words(a: u32, b: u32) -> u32 {
        (f32::from_bits(a) * f32::from_bits(b)).to_bits()
    }
}

macro_rules! half_elem {
    ($t:ident, $from:ident, $to:ident, $pack:ident, $unpack:ident, $add:ident, $mul:ident, $max:ident) => {
        impl Elem for $t {
            type F32Vec = [f32; 8];
            const NEG_INFINITY: Self = $t::NEG_INFINITY;
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                $t::from_bits(arch::$from(value))
            }
            #[inline(always)]
            fn constant(value: f32) -> Self {
                $t::from_f32_const(value)
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                arch::$to(<$t>::to_bits(self))
            }
            #[inline(always)]
            fn unpack(words: [u32; 4]) -> [f32; 8] {
                let [[a, b], [c, d], [e, f], [g, h]] = words.map(arch::$unpack);
                [a, b, c, d, e, f, g, h]
            }
            #[inline(always)]
            fn pack([a, b, c, d, e, f, g, h]: [f32; 8]) -> [u32; 4] {
                [arch::$pack(a, b), arch::$pack(c, d), arch::$pack(e, f), arch::$pack(g, h)]
            }
            #[inline(always)]
            fn max_words(a: u32, b: u32) -> u32 {
                arch::$max(a, b)
            }
            #[inline(always)]
            fn from_bits(word: u32) -> Self {
                $t::from_bits(word as u16)
            }
            #[inline(always)]
            fn to_bits(self) -> u32 {
                u32::from(<$t>::to_bits(self))
            }
            #[inline(always)]
            fn add_words(a: u32, b: u32) -> u32 {
                arch::$add(a, b)
            }
            #[inline(always)]
            fn mul_words(a: u32, b: u32) -> u32 {
                arch::$mul(a, b)
            }
        }
    };
}
half_elem!(f16, f32_to_f16, f16_to_f32, f32x2_to_f16x2, f16x2_to_f32x2, add_f16x2, mul_f16x2, max_f16x2);
half_elem!(
    bf16,
    f32_to_bf16,
    bf16_to_f32,
    f32x2_to_bf16x2,
    bf16x2_to_f32x2,
    add_bf16x2,
    mul_bf16x2,
    max_bf16x2
);
