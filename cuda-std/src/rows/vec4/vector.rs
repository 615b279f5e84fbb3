//! A vec4: four contiguous elements of a row.
use core::marker::PhantomData;

use crate::arch;
use crate::numeric::elem::{Elem, F32Vec};

/// Elements in a vec4.
pub const LEN: u32 = 4;

/// Four elements of one type, kept in registers without conversion. The four elements take two 32-bit words
/// for a 16-bit type and four words for f32.
#[derive(Clone, Copy)]
pub struct Vec4<T> {
    pub(crate) words: [u32; 4],
    pub(crate) element: PhantomData<T>,
}

impl<T: Elem> Vec4<T> {
    /// All bits zero.
    pub const ZERO: Self = Self { words: [0; 4], element: PhantomData };

    /// Creates a vec4 (four elements) from f32 values, each rounded once to `T`.
    #[inline(always)]
    pub fn from_lanes([a, b, c, d]: [f32; 4]) -> Self {
        let lanes = T::F32Vec::from_fn(|i| match i {
            0 => a,
            1 => b,
            2 => c,
            3 => d,
            _ => 0.0,
        });
        Self { words: T::pack(lanes), element: PhantomData }
    }

    /// Rounds `value`, a compile-time constant, to `T`. Returns a vec4 with this value in all four elements.
    #[inline(always)]
    pub fn splat(value: f32) -> Self {
        Self { words: T::splat(value), element: PhantomData }
    }

    /// Returns the elementwise sums of two vec4s (four elements each). Each sum is rounded once to `T`.
    #[inline(always)]
    pub fn plus(self, other: Self) -> Self {
        self.by_words(other, T::add_words)
    }

    /// Returns the elementwise products of two vec4s (four elements each). Each product is rounded once to
    /// `T`.
    #[inline(always)]
    pub fn times(self, other: Self) -> Self {
        self.by_words(other, T::mul_words)
    }

    #[inline(always)]
    fn by_words(self, other: Self, f: impl Fn(u32, u32) -> u32) -> Self {
        let ([a, b, c, d], [e, g, h, i]) = (self.words, other.words);
        let words =
            if size_of::<T>() == 2 { [f(a, e), f(b, g), 0, 0] } else { [f(a, e), f(b, g), f(c, h), f(d, i)] };
        Self { words, element: PhantomData }
    }

    /// Reinterprets the bits as a vec4 (four elements) of another type `E`, which has the same size as `T`.
    #[inline(always)]
    pub fn cast<E: Elem>(self) -> Vec4<E> {
        Vec4 { words: self.words, element: PhantomData }
    }

    /// Returns the same vec4 (four elements), through an optimization barrier. Later code that needs f32
    /// values then converts the elements again. Without the barrier, the compiler would keep the f32 values
    /// of an earlier conversion. For 16-bit types, f32 values take twice as many registers as the vec4.
    #[inline(always)]
    pub fn opaque_lanes(self) -> Self {
        let [a, b, c, d] = self.words;
        let words = if size_of::<T>() == 2 {
            let [a, b] = arch::opaque([a, b]);
            [a, b, 0, 0]
        } else {
            arch::opaque([a, b, c, d])
        };
        Self { words, ..self }
    }

    /// Converts the elements to f32, which is exact.
    #[inline(always)]
    pub fn lanes(self) -> [f32; 4] {
        let lanes = T::unpack(self.words);
        [lanes.get(0), lanes.get(1), lanes.get(2), lanes.get(3)]
    }
}

/// Rounds each of the four values to `T` and converts it back to f32. A store and a load with the type `T`
/// would have the same effect.
#[inline(always)]
pub fn round<T: Elem>(lanes: [f32; 4]) -> [f32; 4] {
    Vec4::<T>::from_lanes(lanes).lanes()
}
