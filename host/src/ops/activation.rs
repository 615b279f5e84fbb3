//! `y = f(x + bias)`, element by element.
use cuda_std::row::Rows;
use half::{bf16, f16};
use kernels_gpu::elementwise::activations::ActivationParams;
use kernels_gpu::elementwise::activations::Function;
use kernels_gpu::elementwise::partition::Extent;
use kernels_gpu::elementwise::partition::THREADS;
use kernels_gpu::ops::activation::launch;

use crate::arguments::{Argument, ScalarKind, Source, choices};
use crate::library::LaunchSite;
use crate::operands::overlap::expect_disjoint;
use crate::plan::elementwise::Elementwise;
use crate::{Device, Dtype, Error, Result, Stream, View, ViewMut};

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Activation {
    /// `x * (1 + erf(x / sqrt(2))) / 2`: torch's GELU.
    Gelu,
    /// The formula of `Gelu`, computed with the `erff` of CUDA 13.2 and newer. The last bits of the result
    /// can differ from the result with the `erff` of older CUDA versions.
    GeluCuda13_2,
    /// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2`: torch's GELU with approximate="tanh".
    GeluTanh,
    /// The formula of [`Activation::GeluTanh`], computed step by step like the torch operators in
    /// transformers' `NewGELUActivation`.
    GeluNew,
    /// The formula of [`Activation::GeluTanh`], computed step by step like the torch operators in
    /// transformers' `FastGELUActivation`.
    GeluFast,
    /// `x * sigmoid(1.702 * x)`, computed step by step like the torch operators in transformers'
    /// `QuickGELUActivation`.
    GeluQuick,
    /// `x * sigmoid(x)`.
    Silu,
    /// `x` if `x` is greater than the threshold, and 0 otherwise. The threshold is the value of this enum
    /// variant. It must not be NaN.
    Fatrelu(f32),
    /// `1 / (1 + e^-x)`, the function of the gate in GLU.
    Sigmoid,
    /// The square of `x` if `x` is positive, and 0 otherwise: transformers' `ReLUSquaredActivation`.
    Relu2,
}

/// The kernels of an op that applies an activation function. Sigmoid and squared ReLU have separate kernels.
/// The kernels in `selected` compute all other activation functions. These kernels select the function at run
/// time. Each array has two kernels: one for any layout, and one for rows that can be read in 16-byte
/// vectors.
pub(super) struct Kernels<K> {
    pub selected: [K; 2],
    pub sigmoid: [K; 2],
    pub relu2: [K; 2],
}

impl<K: Copy> Kernels<K> {
    /// Returns the kernels that compute `activation`.
    pub fn of(&self, activation: Activation) -> [K; 2] {
        match activation {
            Activation::Sigmoid => self.sigmoid,
            Activation::Relu2 => self.relu2,
            _ => self.selected,
        }
    }
}

/// The steps after which a kernel rounds to the element type of its tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Roundings {
    /// Round after each step that is a separate operator in torch. The result then has the same bits as the
    /// result of torch's operators on a GPU.
    #[default]
    Exact,
    /// Round only at the end. The kernel uses approximate reciprocals and exponentials, with an error of a
    /// few ulp of f32.
    Once,
}

choices! { Roundings: Exact, Once; }

impl<'t> Argument<'t> for Activation {
    /// Takes two values from the arguments of a call. The first value is the number that
    /// `oxiwarp/ops/activation.py` assigns to the activation function. The second value is the threshold, if
    /// the call has one.
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        let (op, kind) = (source.op(), source.int()?);
        let threshold = if source.has(ScalarKind::Float) { source.float()? } else { 0.0 };
        Ok(match kind {
            0 => Self::Gelu,
            1 => Self::GeluCuda13_2,
            2 => Self::GeluTanh,
            3 => Self::GeluNew,
            4 => Self::GeluFast,
            5 => Self::GeluQuick,
            6 => Self::Silu,
            7 => Self::Fatrelu(threshold),
            8 => Self::Sigmoid,
            9 => Self::Relu2,
            _ => {
                let (got, expected) = (kind as f64, "0 to 9");
                return Err(Error::Value { op, arg: "kind", got, expected }.into());
            }
        })
    }
}

impl Activation {
    /// Returns the kernel argument for elements of `dtype`.
    pub(super) fn function(self, op: &'static str, dtype: Dtype, roundings: Roundings) -> Result<Function> {
        let function = Function::new(match self {
            Self::Gelu => Function::GELU,
            Self::GeluCuda13_2 => Function::GELU_CUDA_13_2,
            Self::GeluTanh => Function::GELU_TANH,
            Self::GeluNew => Function::GELU_NEW,
            Self::GeluFast => Function::GELU_FAST,
            Self::GeluQuick => Function::GELU_QUICK,
            Self::Silu => Function::SILU,
            Self::Sigmoid | Self::Relu2 => Function::COMPILED,
            // As in torch, a threshold of this activation (`x` if `x > threshold`, otherwise 0) may be
            // infinite. With the threshold +inf, the result is 0 for every `x`. With the threshold -inf, the
            // result is `x` for every finite `x`.
            Self::Fatrelu(threshold) if threshold.is_nan() => {
                let expected = "a number or an infinity";
                return Err(Error::Value { op, arg: "threshold", got: threshold.into(), expected });
            }
            Self::Fatrelu(threshold) => {
                // torch rounds the threshold to the element type before it compares.
                let threshold = match dtype {
                    Dtype::F16 => f16::from_f32(threshold).to_f32(),
                    Dtype::Bf16 => bf16::from_f32(threshold).to_f32(),
                    _ => threshold,
                };
                return Ok(Function { threshold, ..Function::new(Function::FATRELU) });
            }
        });
        Ok(if roundings == Roundings::Once { function.once() } else { function })
    }
}

const OP: &str = "activation";
/// A function that launches a kernel of this op.
type ActivationKernel = unsafe fn(LaunchSite, Rows, *const u8, Rows, ActivationParams, Extent) -> Result<()>;
const KERNELS: Kernels<ActivationKernel> = Kernels {
    selected: [launch::activation_any, launch::activation_block1],
    sigmoid: [launch::activation_sigmoid_any, launch::activation_sigmoid_block1],
    relu2: [launch::activation_relu2_any, launch::activation_relu2_block1],
};

/// Computes `y = f(x + bias)` for each element, where `f` is an [`Activation`].
///
/// `x` and `y` are f32, f16 or bf16 and have the same shape and dtype. Both tensors are contiguous, or can be
/// viewed as `[n, m, columns]` without a copy. `bias` has the shape `[columns]` and the dtype of `x`.
///
/// If there are no elements, the call does nothing. The bits of an element of `y` depend only on one element
/// of `x` and one element of `bias`.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if `y` overlaps an
/// input. [`Error`] lists further errors, such as those of the GPU driver.
pub fn activation(
    device: &Device,
    x: View,
    bias: Option<View>,
    y: ViewMut,
    f: Activation,
    roundings: Roundings,
    stream: Stream,
) -> Result<()> {
    let y = y.as_view();
    let bias_base = check_bias(OP, device, bias.as_ref(), &x, x.shape())?;
    let launch = Elementwise::of(OP, device, [("x", &x), ("out", y)], bias.is_some(), is_aligned(bias_base))?;
    expect_disjoint(OP, ("out", y), &[Some(("x", &x)), bias.as_ref().map(|bias| ("bias", bias))])?;
    let function = f.function(OP, x.dtype(), roundings)?;
    let exact = u32::from(roundings == Roundings::Exact);
    let p = ActivationParams { function, exact };
    let [x, y] = launch.layout.operands;
    launch.launch(device, KERNELS.of(f), THREADS, stream, |kernel, site, extent| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, x, bias_base, y, p, extent) }
    })
}

/// Checks that a bias is contiguous, that its dtype is the dtype of `x`, and that its length is the last size
/// of `shape`. Returns the address of the bias, or null if there is no bias.
pub(super) fn check_bias(
    op: &'static str,
    device: &Device,
    bias: Option<&View>,
    x: &View,
    shape: &[i64],
) -> Result<*const u8> {
    let Some(bias) = bias else { return Ok(std::ptr::null()) };
    let Some(last) = shape.last() else {
        let expected = "at least one dimension where there is a bias".into();
        return Err(Error::Shape { op, arg: "x", got: vec![], expected });
    };
    bias.expect_on(op, "bias", device)?;
    bias.expect_dtype(op, "bias", x.dtype())?;
    bias.expect_shape(op, "bias", &[*last])?;
    if bias.strides()[0] != 1 && *last > 1 {
        return Err(bias.bad_strides(op, "bias", "it must be contiguous"));
    }
    Ok(bias.ptr().cast())
}

/// Returns whether the address `base` is a multiple of 16 bytes. Also returns true for a null address, which
/// means that the operand is absent.
pub(super) fn is_aligned(base: *const u8) -> bool {
    (base as usize).is_multiple_of(16)
}
