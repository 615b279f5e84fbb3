//! The element types of tensors, and the f32 lanes that kernels compute on.
//!
//! A kernel is generic over [`Elem`]; its arithmetic is f32. `Elem` knows how 16 bytes become f32 lanes and
//! back.
use half::{bf16, f16};

use crate::arch;

/// The f32 values of one 16-byte pack: `[f32; 4]` for f32, `[f32; 8]` for the 16-bit types.
pub trait F32Vec: Copy {
    /// How many.
    const LEN: u32;
    /// All lanes `value`.
    fn splat(value: f32) -> Self;
    /// Lane `i` is `f(i)`.
    fn from_fn(f: impl FnMut(usize) -> f32) -> Self;
    /// Lane `i`.
    fn get(&self, i: usize) -> f32;

    /// `f` of every lane.
    #[inline(always)]
    fn map(self, mut f: impl FnMut(f32) -> f32) -> Self {
        Self::from_fn(|i| f(self.get(i)))
    }
    /// `f` of every pair of lanes.
    #[inline(always)]
    fn zip(self, other: Self, mut f: impl FnMut(f32, f32) -> f32) -> Self {
        Self::from_fn(|i| f(self.get(i), other.get(i)))
    }
    /// The sum of the lanes, as a balanced tree.
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

/// An element type of tensors. Conversions from f32 round to nearest even.
pub trait Elem: Copy + Send + Sync + 'static {
    /// The f32 values of one pack.
    type F32Vec: F32Vec;
    /// Smaller than all others: the neutral element of a maximum.
    const NEG_INFINITY: Self;

    /// From f32, rounded once.
    fn from_f32(value: f32) -> Self;
    /// The same of a number that is known when the kernel is compiled: what no compiler looks into is no
    /// instruction then.
    fn constant(value: f32) -> Self;
    /// To f32, exact.
    fn to_f32(self) -> f32;
    /// 16 bytes as lanes, in memory order.
    fn unpack(words: [u32; 4]) -> Self::F32Vec;
    /// Lanes as 16 bytes, each rounded once.
    fn pack(lanes: Self::F32Vec) -> [u32; 4];
    /// The larger elements of two words, of which each holds one or two; a NaN may win or lose.
    fn max_words(a: u32, b: u32) -> u32;
    /// The element of `size_of::<Self>()` bytes whose bits are the low bits of `word`.
    fn from_bits(word: u32) -> Self;
    /// The element's bits, zero-extended.
    fn to_bits(self) -> u32;

    /// The sum of the elements in two words, each rounded once.
    fn add_words(a: u32, b: u32) -> u32;
    /// The product of the elements in two words, each rounded once.
    fn mul_words(a: u32, b: u32) -> u32;

    /// 16 bytes of a number that is known when the kernel is compiled.
    #[inline(always)]
    fn splat(value: f32) -> [u32; 4] {
        let bits = Self::constant(value).to_bits();
        [if size_of::<Self>() == 2 { bits | bits << 16 } else { bits }; 4]
    }

    /// `value` as this type holds it: the rounding that a store and load would make.
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
