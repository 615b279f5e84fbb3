//! Selects at compile time which activation functions a kernel can compute.
//!
//! One common kernel contains all frequent functions, and its argument of type [`Function`] selects one of
//! them. Each less frequent function has a separate kernel. Its code therefore costs the common kernel no
//! branches and no registers.
use core::f32::consts::LOG2_E;

use cuda_std::math::{ex2_ftz, rcp_ftz};
use cuda_std::prelude::*;

use super::activations::Function;
use super::approx16::{self, is_bf16};
use super::rounded_chain::{RoundedVec, over_one_plus_exp};

/// A set of activation functions that one kernel can compute. If the set has several functions, the kernel
/// argument of type [`Function`] selects one of them.
pub(crate) trait Functions {
    /// Computes the selected function for a pack (16-byte vector) of elements of type `T`, with the same
    /// intermediate roundings as torch.
    fn exact<T: Elem>(function: Function, x: RoundedVec<T>) -> RoundedVec<T>;
    /// Computes the selected function in f32, and leaves the rounding to `T` to the caller.
    fn fast<T: Elem>(function: Function, x: T::F32Vec) -> T::F32Vec;
    /// Computes the selected function and its derivative for each element of `x`, in f32.
    fn values_and_slopes<T: Elem>(function: Function, x: T::F32Vec) -> (T::F32Vec, T::F32Vec);
}

/// All functions of [`Function`].
pub(crate) struct Selected;

impl Functions for Selected {
    #[inline(always)]
    fn exact<T: Elem>(function: Function, x: RoundedVec<T>) -> RoundedVec<T> {
        function.exact(x)
    }
    #[inline(always)]
    fn fast<T: Elem>(function: Function, x: T::F32Vec) -> T::F32Vec {
        function.fast::<T>(x)
    }
    #[inline(always)]
    fn values_and_slopes<T: Elem>(function: Function, x: T::F32Vec) -> (T::F32Vec, T::F32Vec) {
        function.values_and_slopes::<T>(x)
    }
}

/// `1 / (1 + e^-x)`: aten's sigmoid.
pub(crate) struct Sigmoid;

impl Functions for Sigmoid {
    #[inline(always)]
    fn exact<T: Elem>(_: Function, x: RoundedVec<T>) -> RoundedVec<T> {
        if is_bf16::<T>() {
            x.map(approx16::sigmoid)
        } else {
            RoundedVec::new(over_one_plus_exp::<T>(T::F32Vec::splat(1.0), x.lanes()))
        }
    }
    #[inline(always)]
    fn fast<T: Elem>(_: Function, x: T::F32Vec) -> T::F32Vec {
        x.map(approx16::sigmoid)
    }
    #[inline(always)]
    fn values_and_slopes<T: Elem>(_: Function, x: T::F32Vec) -> (T::F32Vec, T::F32Vec) {
        let exp = x.map(|x| ex2_ftz(-LOG2_E * x));
        let sigmoid = exp.map(|exp| rcp_ftz(1.0 + exp));
        // `sigmoid * exp` equals `1 - sigmoid`. This product is more accurate than the difference, in which
        // most digits cancel. If `exp` is infinite, `sigmoid` is 0 and the product is NaN. `min` replaces
        // this NaN by 1.
        let slope = sigmoid.zip(exp, |s, exp| s * (s * exp).min(1.0));
        (sigmoid, slope)
    }
}

/// The square of `x` if `x` is positive, else 0: transformers' `ReLUSquaredActivation`.
pub(crate) struct Relu2;

impl Functions for Relu2 {
    #[inline(always)]
    fn exact<T: Elem>(_: Function, x: RoundedVec<T>) -> RoundedVec<T> {
        let positive = x.map(relu);
        positive.times(positive)
    }
    #[inline(always)]
    fn fast<T: Elem>(_: Function, x: T::F32Vec) -> T::F32Vec {
        x.map(|x| relu(x) * relu(x))
    }
    #[inline(always)]
    fn values_and_slopes<T: Elem>(_: Function, x: T::F32Vec) -> (T::F32Vec, T::F32Vec) {
        let positive = x.map(relu);
        (positive.map(|x| x * x), positive.map(|x| 2.0 * x))
    }
}

/// aten's ReLU. NaN stays NaN.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

#[cfg(test)]
mod tests {
    use cuda_std::libdevice::exp_add;
    use half::{bf16, f16};

    use super::*;

    /// Asserts that `F::exact` and the library function `of_library` return the same bits for every input of
    /// the 16-bit type `T`.
    #[track_caller]
    fn same<F: Functions, T: Elem>(of_library: fn(f32) -> f32) {
        let function = Function::new(Function::COMPILED);
        for bits in 0..=u32::from(u16::MAX) {
            let x = T::from_bits(bits).to_f32();
            let got = F::exact(function, RoundedVec::<T>::new(T::F32Vec::splat(x))).lanes().get(0);
            let expected = T::round(of_library(x));
            let equal = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
            assert!(equal, "the function of {x:e} is {got:e}, expected {expected:e}");
        }
    }

    #[test]
    fn every_value_has_the_bits_of_the_library() {
        same::<Sigmoid, bf16>(|x| 1.0 / exp_add(-x, 1.0));
        same::<Sigmoid, f16>(|x| 1.0 / exp_add(-x, 1.0));
        same::<Relu2, bf16>(|x| relu(x) * relu(x));
        same::<Relu2, f16>(|x| relu(x) * relu(x));
    }
}
