//! The activation functions: a value, or a value and its slope, of the lanes of a pack.
//!
//! Which function is a kernel argument, so one kernel serves all of them: the branch is the same for every
//! thread, and is taken once a pack. The functions that torch has as one kernel are computed in f32 as that
//! kernel does, with [`libdevice`](cuda_std::libdevice)'s functions; those that models write as a chain of
//! torch's operators are rounded to the element type after each, as the chain is. The caller rounds the last
//! result.
use core::f32::consts::{FRAC_1_SQRT_2, LN_2, LOG2_E};

use cuda_std::libdevice::{Erf, tanh};
use cuda_std::math::{ex2_ftz, rcp_ftz};
use cuda_std::prelude::*;

use super::approx16::{self, is_bf16};
use super::constants::{BETA, KAPPA, QUICK};
use super::rounded_chain::{RoundedVec, gelu_fast, gelu_new, gelu_quick, over_one_plus_exp};

/// A function and its constants: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// One of the constants below.
    pub kind: u32,
    /// Of [`Function::SIGMOID`].
    pub linear: f32,
    /// Of [`Function::SIGMOID`].
    pub cubic: f32,
    /// Of [`Function::FATRELU`].
    pub threshold: f32,
}

/// `1 / sqrt(2 * pi)`.
const INV_SQRT_2_PI: f32 = 0.398_942_3;

impl Function {
    /// `x / 2 * (1 + erf(x / sqrt(2)))` with the `erff` of CUDA up to 13.1: aten's GELU.
    pub const GELU: u32 = 0;
    /// The same with the `erff` of CUDA from 13.2 on.
    pub const GELU_CUDA_13_2: u32 = 1;
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`: aten's GELU with approximate="tanh".
    pub const GELU_TANH: u32 = 2;
    /// The same formula, operator by operator: transformers' `NewGELUActivation`.
    pub const GELU_NEW: u32 = 3;
    /// The same formula in another order, operator by operator: transformers' `FastGELUActivation`.
    pub const GELU_FAST: u32 = 4;
    /// `x * sigmoid(1.702 * x)`, operator by operator: transformers' `QuickGELUActivation`, diffusers'
    /// `ApproximateGELU`.
    pub const GELU_QUICK: u32 = 5;
    /// `x / (1 + e^-x)`: aten's SiLU.
    pub const SILU: u32 = 6;
    /// `x * sigmoid(u)` with `u = -ln(2) * x * (linear + cubic * x^2)`: all but the first two, without
    /// roundings in between and without IEEE division. (`(1 + tanh(u)) / 2` is `sigmoid(2 * u)`.)
    pub const SIGMOID: u32 = 7;
    /// `x` above the threshold, else 0.
    pub const FATRELU: u32 = 8;

    const fn of(kind: u32) -> Self {
        Self { kind, linear: 0.0, cubic: 0.0, threshold: 0.0 }
    }
    /// The function of a kind that has no constants.
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
    /// The same function with one rounding, at the end: what `mode="fast"` and every gradient compute.
    pub const fn once(self) -> Self {
        let kind = if self.linear != 0.0 { Self::SIGMOID } else { self.kind };
        Self { kind, ..self }
    }

    /// The function as torch computes it, of and into elements of `T`.
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

    /// The values of a function that is [`once`](Self::once); the caller rounds them.
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

    /// The function's values and derivatives, for functions that are [`once`](Self::once).
    #[inline(always)]
    pub(crate) fn values_and_slopes<T: Elem>(self, x: T::F32Vec) -> (T::F32Vec, T::F32Vec) {
        match self.kind {
            Self::SIGMOID => {
                let exp = x.map(|x| self.exp(x));
                let sigmoid = exp.map(|exp| rcp_ftz(1.0 + exp));
                // 1 - sigmoid without its cancellation; where exp is infinite, the product is NaN and the
                // minimum 1.
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

/// `x^2`, but finite: it is multiplied by 0 where there is no cubic term.
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
    // nvcc contracts the sum, and nothing else.
    let inner = BETA * fma(x * x * x, KAPPA, x);
    (0.5 * x) * (1.0 + tanh(inner))
}

/// The lanes as a tensor of `T` would hold them: what an operator's output goes through.
#[inline(always)]
pub(crate) fn rounded<T: Elem>(lanes: T::F32Vec) -> T::F32Vec {
    T::unpack(T::pack(lanes))
}

/// What the kernels of the activations, of the gated ones and of their gradients need to know beside their
/// operands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ActivationParams {
    /// `f`.
    pub function: Function,
    /// Is every operator's result rounded to the element type, and not the last alone? 0 or 1.
    pub exact: u32,
}

/// The operands that are read: `x`, the gate, and their biases, each null or one row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatedOperands {
    /// What is multiplied.
    pub x: Rows,
    /// What `f` is applied to.
    pub gate: Rows,
    /// Added to `x`.
    pub bias_x: *const u8,
    /// Added to the gate.
    pub bias_gate: *const u8,
}
