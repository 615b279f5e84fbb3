//! Activation functions that models write as a sequence of several torch operators. Each operator rounds its
//! result to the element type.
use core::marker::PhantomData;

use cuda_std::libdevice::{self, exp_add};
use cuda_std::math::quotient;
use cuda_std::prelude::*;

use super::approx16;
use super::constants::{BETA, KAPPA, QUICK};

/// Returns `x / (1 + e^-y)` in f32. The caller rounds the result to `T`. For 16-bit types, this function
/// divides with [`quotient`], which is less exact than an IEEE division but gives the same 16-bit results. An
/// IEEE division would take as many instructions as all other operations of this function together.
#[inline(always)]
pub(crate) fn over_one_plus_exp<T: Elem>(x: T::F32Vec, y: T::F32Vec) -> T::F32Vec {
    let divisors = y.map(|y| exp_add(-y, 1.0));
    // `quotient` needs a divisor whose reciprocal is a normal number. If `y` is -86 or less, the divisor
    // `1 + e^-y` can be too large for `quotient`.
    let mut plain = size_of::<T>() == 2;
    for i in 0..T::F32Vec::LEN as usize {
        plain &= (y.get(i) > -86.0) & (y.get(i) < f32::INFINITY);
    }
    if plain { x.zip(divisors, quotient) } else { x.zip(divisors, |x, divisor| x / divisor) }
}

/// A pack (16 bytes) of elements of type `T`, stored as four 32-bit words. Each arithmetic operation on packs
/// rounds its result to `T`. An addition or multiplication processes one word at a time: two 16-bit elements
/// or one f32.
#[derive(Clone, Copy)]
pub(crate) struct RoundedVec<T>([u32; 4], PhantomData<T>);

impl<T: Elem> RoundedVec<T> {
    #[inline(always)]
    pub fn new(lanes: T::F32Vec) -> Self {
        Self(T::pack(lanes), PhantomData)
    }
    #[inline(always)]
    pub fn of(pack: Pack<T>) -> Self {
        Self(pack.words(), PhantomData)
    }
    #[inline(always)]
    pub fn pack(self) -> Pack<T> {
        Pack::from_words(self.0)
    }
    #[inline(always)]
    pub fn splat(value: f32) -> Self {
        Self(T::splat(value), PhantomData)
    }
    #[inline(always)]
    pub fn lanes(self) -> T::F32Vec {
        T::unpack(self.0)
    }
    #[inline(always)]
    pub fn map(self, f: impl FnMut(f32) -> f32) -> Self {
        Self::new(self.lanes().map(f))
    }
    #[inline(always)]
    pub fn plus(self, other: Self) -> Self {
        let word = |i: usize| T::add_words(self.0[i], other.0[i]);
        Self([word(0), word(1), word(2), word(3)], PhantomData)
    }
    #[inline(always)]
    pub fn times(self, other: Self) -> Self {
        let word = |i: usize| T::mul_words(self.0[i], other.0[i]);
        Self([word(0), word(1), word(2), word(3)], PhantomData)
    }
}

/// Computes `0.5 * x * (1.0 + tanh(sqrt(2 / pi) * (x + 0.044715 * pow(x, 3.0))))`. The cube is computed as
/// `x * x * x` with each product rounded to `T`, because aten computes `pow(x, 3)` in this way.
#[inline(always)]
pub(crate) fn gelu_new<T: Elem>(x: RoundedVec<T>) -> RoundedVec<T> {
    let cube = x.times(x).times(x);
    let sum = x.plus(cube.map(|cube| cube * KAPPA));
    halved_times_one_plus_tanh(x, sum.map(|sum| sum * BETA))
}

/// Computes `0.5 * x * (1.0 + tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))`.
#[inline(always)]
pub(crate) fn gelu_fast<T: Elem>(x: RoundedVec<T>) -> RoundedVec<T> {
    let sum = RoundedVec::splat(1.0).plus(x.map(|x| x * KAPPA).times(x));
    halved_times_one_plus_tanh(x, x.map(|x| x * BETA).times(sum))
}

#[inline(always)]
fn halved_times_one_plus_tanh<T: Elem>(x: RoundedVec<T>, inner: RoundedVec<T>) -> RoundedVec<T> {
    let tanh = if size_of::<T>() == 2 { inner.map(approx16::tanh) } else { inner.map(libdevice::tanh) };
    RoundedVec::splat(0.5).times(x).times(RoundedVec::splat(1.0).plus(tanh))
}

#[inline(always)]
pub(crate) fn gelu_quick<T: Elem>(x: RoundedVec<T>) -> RoundedVec<T> {
    let scaled = x.map(|x| QUICK * x);
    let sigmoid = if approx16::is_bf16::<T>() {
        scaled.map(approx16::sigmoid)
    } else {
        RoundedVec::new(over_one_plus_exp::<T>(T::F32Vec::splat(1.0), scaled.lanes()))
    };
    x.times(sigmoid)
}
