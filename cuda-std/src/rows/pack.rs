//! A pack: one 16-byte vector of elements. A thread loads or stores at most 16 bytes in one instruction. A
//! pack of 16-bit elements takes half as many registers as the same elements converted to f32.
use core::marker::PhantomData;

use crate::numeric::elem::{Elem, F32Vec};

/// 16 bytes of elements of type `T`, kept in registers without conversion.
///
/// If a kernel uses the same elements before and after a reduction, keep the pack and convert it to f32
/// twice. The second conversion costs less than keeping the f32 values in registers, or reading memory again.
#[derive(Clone, Copy)]
pub struct Pack<T> {
    words: [u32; 4],
    element: PhantomData<T>,
}

impl<T: Elem> Pack<T> {
    /// Number of elements.
    pub const LEN: u32 = T::F32Vec::LEN;
    /// All bits zero.
    pub const ZERO: Self = Self::from_words([0; 4]);

    /// Creates a pack from its 16 bytes.
    #[inline(always)]
    pub const fn from_words(words: [u32; 4]) -> Self {
        Self { words, element: PhantomData }
    }
    /// Returns the 16 bytes of the pack.
    #[inline(always)]
    pub const fn words(self) -> [u32; 4] {
        self.words
    }
    /// Converts the elements to f32, which is exact.
    #[inline(always)]
    pub fn lanes(self) -> T::F32Vec {
        T::unpack(self.words)
    }
    /// Creates a pack from f32 values, each rounded once to `T`.
    #[inline(always)]
    pub fn from_lanes(lanes: T::F32Vec) -> Self {
        Self::from_words(T::pack(lanes))
    }
    /// Returns the elementwise maximum of the packs (16-byte vectors) `self` and `other`. The elements are
    /// not converted to f32. If one of two compared elements is NaN, the result is either of them.
    #[inline(always)]
    pub fn max(self, other: Self) -> Self {
        Self::from_words(core::array::from_fn(|i| T::max_words(self.words[i], other.words[i])))
    }
    /// Returns the same pack (16-byte vector), through an optimization barrier. Later code that needs f32
    /// values then converts the elements again. Without the barrier, the compiler would keep the f32 values
    /// of an earlier conversion. For 16-bit types, f32 values take twice as many registers as the pack.
    #[inline(always)]
    pub fn opaque_lanes(self) -> Self {
        Self::from_words(crate::arch::opaque(self.words))
    }

    /// Creates a pack from single elements: element `i` is `bits(i)`.
    #[inline(always)]
    pub(crate) fn from_bits(mut bits: impl FnMut(u32) -> u32) -> Self {
        let per_word = Self::LEN as usize / 4;
        Self::from_words(core::array::from_fn(|word| {
            let mut packed = 0;
            for part in 0..per_word {
                packed |= bits((word * per_word + part) as u32) << (part * 8 * size_of::<T>());
            }
            packed
        }))
    }
    /// Returns the bits of element `i`, zero-extended.
    #[inline(always)]
    pub(crate) fn bits(self, i: u32) -> u32 {
        let per_word = Self::LEN / 4;
        let word = self.words[(i / per_word) as usize];
        if per_word == 1 { word } else { (word >> (16 * (i % per_word))) & 0xffff }
    }
}
