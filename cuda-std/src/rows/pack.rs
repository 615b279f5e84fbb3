//! 16 bytes of elements: the widest access that one thread makes; in 16 bits half the registers of its f32 lanes.
use core::marker::PhantomData;

use crate::numeric::elem::{Elem, F32Vec};

/// 16 bytes of `T`, held as loaded. Keep packs across a reduction and unpack them again: conversion is cheaper than
/// the registers (or the second read) that it saves.
#[derive(Clone, Copy)]
pub struct Pack<T> {
    words: [u32; 4],
    element: PhantomData<T>,
}

impl<T: Elem> Pack<T> {
    /// How many elements.
    pub const LEN: u32 = T::F32Vec::LEN;
    /// All bits zero.
    pub const ZERO: Self = Self::from_words([0; 4]);

    /// From its 16 bytes.
    #[inline(always)]
    pub const fn from_words(words: [u32; 4]) -> Self {
        Self { words, element: PhantomData }
    }
    /// Its 16 bytes.
    #[inline(always)]
    pub const fn words(self) -> [u32; 4] {
        self.words
    }
    /// Its values in f32, exact.
    #[inline(always)]
    pub fn lanes(self) -> T::F32Vec {
        T::unpack(self.words)
    }
    /// From values in f32, each rounded once to `T`.
    #[inline(always)]
    pub fn from_lanes(lanes: T::F32Vec) -> Self {
        Self::from_words(T::pack(lanes))
    }
    /// The larger of each pair of elements, without unpacking them; a NaN may win or lose.
    #[inline(always)]
    pub fn max(self, other: Self) -> Self {
        Self::from_words(core::array::from_fn(|i| T::max_words(self.words[i], other.words[i])))
    }
    /// The same pack, but the compiler no longer knows that its lanes were computed before: it unpacks again, where
    /// it would otherwise keep the lanes alive in between, in twice the registers for the 16-bit types.
    #[inline(always)]
    pub fn opaque_lanes(self) -> Self {
        Self::from_words(crate::arch::opaque(self.words))
    }

    /// From elements read one at a time: element `i` is `bits(i)`.
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
    /// The bits of element `i`, zero-extended.
    #[inline(always)]
    pub(crate) fn bits(self, i: u32) -> u32 {
        let per_word = Self::LEN / 4;
        let word = self.words[(i / per_word) as usize];
        if per_word == 1 { word } else { (word >> (16 * (i % per_word))) & 0xffff }
    }
}
