//! Computes activation functions and their derivatives for the elements of a pack (a 16-byte vector).
//!
//! A kernel argument selects the function, so that one kernel can compute all functions of this module. All
//! threads of a launch compute the same function and take the same branch, so warps do not diverge.
//!
//! Results are rounded as in torch. torch computes some functions, such as GELU, in one kernel, which rounds
//! once, so this module also rounds once. It computes these functions in f32, with the formulas of CUDA's
//! [`libdevice`](cuda_std::libdevice) or with approximations that round to the same bits. Models write other
//! functions, such as `x * sigmoid(1.702 * x)`, as a sequence of torch operators. For such a function, this
//! module rounds the result of each operator to the element type.
use core::f32::consts::{FRAC_1_SQRT_2, LN_2, LOG2_E};

use cuda_std::libdevice::{Erf, tanh};
use cuda_std::math::{ex2_ftz, rcp_ftz};
use cuda_std::prelude::*;

use super::approx16::{self, is_bf16};
use super::constants::{BETA, KAPPA, QUICK};
use super::rounded_chain::{RoundedVec, gelu_fast, gelu_new, gelu_quick, over_one_plus_exp};

/// An activation function and its constants: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// The function: [`Function::GELU`] or another constant of this type.
    pub kind: u32,
    /// Linear coefficient of the formula [`Function::SIGMOID`]. The coefficient is 0 for functions that do
    /// not use this formula.
    pub linear: f32,
    /// Cubic coefficient of [`Function::SIGMOID`].
    pub cubic: f32,
    /// Threshold of [`Function::FATRELU`].
    pub threshold: f32,
}

/// `1 / sqrt(2 * pi)`.
const INV_SQRT_2_PI: f32 = 0.398_942_3;

impl Function {
    /// aten's GELU: `x / 2 * (1 + erf(x / sqrt(2)))`, computed with the `erff` of CUDA 13.1 and older.
    pub const GELU: u32 = 0;
    /// aten's GELU: `x / 2 * (1 + erf(x / sqrt(2)))`, computed with the `erff` of CUDA 13.2 and newer.
    pub const GELU_CUDA_13_2: u32 = 1;
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`: aten's GELU with approximate="tanh".
    pub const GELU_TANH: u32 = 2;
    /// The formula of [`Function::GELU_TANH`], rounded to the element type after each operator. transformers'
    /// `NewGELUActivation` computes this formula.
    pub const GELU_NEW: u32 = 3;
    /// `x / 2 * (1 + tanh(0.7978845608 * x * (1 + 0.044715 * x * x)))`, rounded after each operator:
    /// transformers' `FastGELUActivation`.
    pub const GELU_FAST: u32 = 4;
    /// `x * sigmoid(1.702 * x)`, rounded after each operator: transformers' `QuickGELUActivation` and
    /// diffusers' `ApproximateGELU`.
    pub const GELU_QUICK: u32 = 5;
    /// `x / (1 + e^-x)`: aten's SiLU.
    pub const SILU: u32 = 6;
    /// `x * sigmoid(u)` with `u = -ln(2) * x * (linear + cubic * x^2)`. SiLU and all GELUs without `erf`
    /// equal this formula, because `(1 + tanh(v)) / 2` is `sigmoid(2 * v)`. [`Function::once`] replaces these
    /// functions by this formula, which uses an approximate reciprocal instead of an IEEE division.
    pub const SIGMOID: u32 = 7;
    /// `x` if it is above the threshold, else 0.
    pub const FATRELU: u32 = 8;
    /// Value of `kind` for a kernel that is compiled for a single function. Such a kernel ignores all fields
    /// of its argument of type [`Function`].
    pub const COMPILED: u32 = 9;

    const fn of(kind: u32) -> Self {
        Self { kind, linear: 0.0, cubic: 0.0, threshold: 0.0 }
    }
    /// Returns the function that `kind` selects, for example [`Function::GELU`]. For [`Function::FATRELU`],
    /// the caller must set the threshold, which is 0 in the result.
    pub const fn new(kind: u32) -> Self {
        match kind {
            Self::SILU => Self { linear: -LOG2_E, ..Self::of(kind) },
            Self::GELU_QUICK => Self { linear: -LOG2_E * QUICK, ..Self::of(kind) },
            Self::GELU_TANH | Self::GELU_NEW | Self::GELU_FAST => {
                let linear = -2.0 * LOG2_E * BETA;
                Self { linear, cubic: linear * KAPPA, ..Self::of(kind) }
            }
            _ => Self::of(kind),
        }
    }
    /// Returns the version of this function that rounds only the final result, even if torch also rounds
    /// intermediate results. `oxiwarp.patch` uses this version in `mode="fast"`, and gradients use it in
    /// every mode.
    pub const fn once(self) -> Self {
        let kind = if self.linear != 0.0 { Self::SIGMOID } else { self.kind };
        Self { kind, ..self }
    }

    /// Computes this function for a pack (16-byte vector) of elements of type `T`, with the same intermediate
    /// roundings as torch.
    #[inline(always)]
    pub(crate) fn exact<T: Elem>(self, x: RoundedVec<T>) -> RoundedVec<T> {
        match self.kind {
            Self::GELU if is_bf16::<T>() => x.map(approx16::gelu),
            Self::GELU => x.map(|x| gelu(x, Erf::CUDA_12)),
            Self::GELU_CUDA_13_2 => x.map(|x| gelu(x, Erf::CUDA_13_2)),
            Self::GELU_TANH if is_bf16::<T>() => x.map(approx16::gelu_tanh),
            Self::GELU_TANH => x.map(gelu_tanh),
            Self::GELU_NEW => gelu_new(x),
            Self::GELU_FAST => gelu_fast(x),
            Self::GELU_QUICK => gelu_quick(x),
            Self::SILU if is_bf16::<T>() => x.map(approx16::silu),
            Self::SILU => RoundedVec::new(over_one_plus_exp::<T>(x.lanes(), x.lanes())),
            _ => x.map(|x| self.fatrelu(x)),
        }
    }

    /// Computes this function in f32, and leaves the rounding to `T` to the caller. `self` must be a result
    /// of [`once`](Self::once), which returns the version without intermediate roundings.
    #[inline(always)]
    pub(crate) fn fast<T: Elem>(self, x: T::F32Vec) -> T::F32Vec {
        match self.kind {
            Self::SIGMOID => x.map(|x| approx16::over_one_plus(x, self.exp(x))),
            Self::GELU if is_bf16::<T>() => x.map(approx16::gelu),
            Self::GELU | Self::GELU_CUDA_13_2 => x.map(|x| gelu(x, Erf::CUDA_12)),
            _ => x.map(|x| self.fatrelu(x)),
        }
    }

    #[inline(always)]
    fn fatrelu(self, x: f32) -> f32 {
        if x <= self.threshold { 0.0 } else { x }
    }

    /// Computes this function and its derivative for each element of `x`, in f32. `self` must be a result of
    /// [`once`](Self::once), which returns the version without intermediate roundings.
    #[inline(always)]
    pub(crate) fn values_and_slopes<T: Elem>(self, x: T::F32Vec) -> (T::F32Vec, T::F32Vec) {
        match self.kind {
            Self::SIGMOID => {
                let exp = x.map(|x| self.exp(x));
                let sigmoid = exp.map(|exp| rcp_ftz(1.0 + exp));
                // `exp` is `e^-u`, and `sigmoid * exp` equals `1 - sigmoid`. This product is more accurate
                // than the difference, in which most digits cancel. If `exp` is infinite, `sigmoid` is 0 and
                // the product is NaN. `min` replaces this NaN by 1.
                let remainder = sigmoid.zip(exp, |s, exp| (s * exp).min(1.0));
                let product = x.zip(sigmoid, |x, s| x * s);
                let steep =
                    product.zip(remainder, |xs, remainder| xs * remainder).zip(x, |xsr, x| xsr * self.du(x));
                (product, sigmoid.zip(steep, |s, steep| s + steep))
            }
            Self::FATRELU => {
                let on = x.map(|x| if x <= self.threshold { 0.0 } else { 1.0 });
                (x.zip(on, |x, on| if on == 0.0 { 0.0 } else { x }), on)
            }
            _ => {
                let cdf = x.map(|x| fma(0.5, Erf::CUDA_12.erf(x * FRAC_1_SQRT_2), 0.5));
                let density = |x: f32| INV_SQRT_2_PI * ex2_ftz(-0.5 * LOG2_E * x * x);
                (x.zip(cdf, |x, cdf| x * cdf), x.zip(cdf, |x, cdf| fma(x, density(x), cdf)))
            }
        }
    }

    /// `e^-u` of [`Function::SIGMOID`].
    #[inline(always)]
    fn exp(self, x: f32) -> f32 {
        ex2_ftz(x * fma(self.cubic, square(x), self.linear))
    }

    /// `du/dx` of [`Function::SIGMOID`].
    #[inline(always)]
    fn du(self, x: f32) -> f32 {
        -LN_2 * fma(3.0 * self.cubic, square(x), self.linear)
    }
}

/// Returns `x^2`, limited to 1e30. Without the limit, `x^2` could be infinite, and its product with a cubic
/// coefficient of 0 would be NaN.
#[inline(always)]
fn square(x: f32) -> f32 {
    (x * x).min(1e30)
}

#[inline(always)]
fn gelu(x: f32, erf: Erf) -> f32 {
    (x * 0.5) * (1.0 + erf.erf(x * FRAC_1_SQRT_2))
}

#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    // In torch's kernel, nvcc contracts only this sum to an fma.
    let inner = BETA * fma(x * x * x, KAPPA, x);
    (0.5 * x) * (1.0 + tanh(inner))
}

/// Rounds the elements of `lanes` to `T` and converts them back to f32. torch rounds the result of each
/// operator in this way if the output has type `T`.
#[inline(always)]
pub(crate) fn rounded<T: Elem>(lanes: T::F32Vec) -> T::F32Vec {
    T::unpack(T::pack(lanes))
}

/// Kernel argument: the parameters of the activation kernels, the gated activation kernels and their backward
/// kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ActivationParams {
    /// The activation function `f`.
    pub function: Function,
    /// 1 to round to the element type after each operator, 0 to round only the final result.
    pub exact: u32,
}

/// Kernel argument: inputs of the gated activation `(x + bias_x) * f(gate + bias_gate)`. Each bias is a
/// pointer to one row, or null if there is no bias.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatedOperands {
    /// The rows that `f(gate)` multiplies.
    pub x: Rows,
    /// The gate: the rows that `f` is applied to.
    pub gate: Rows,
    /// Row that is added to `x`, or null.
    pub bias_x: *const u8,
    /// Row that is added to the gate, or null.
    pub bias_gate: *const u8,
}
