//! `y = f(x + bias)`, element by element.
use half::{bf16, f16};
use kernels_gpu::elementwise::activations::ActivationParams;
use kernels_gpu::elementwise::activations::Function;
use kernels_gpu::elementwise::partition::THREADS;

use crate::arguments::{Argument, ScalarKind, Source, choices};
use crate::device::launch::args;
use crate::operands::rows::expect_disjoint;
use crate::plan::elementwise::Elementwise;
use crate::{Device, Dtype, Error, Result, Stream, View, ViewMut};

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Activation {
    /// `x * (1 + erf(x / sqrt(2))) / 2`: torch's GELU.
    Gelu,
    /// [`Activation::Gelu`] with the last bits that `erff` has from CUDA 13.2 on.
    GeluCuda13_2,
    /// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2`: torch's GELU with approximate="tanh".
    GeluTanh,
    /// [`Activation::GeluTanh`] in the operators of transformers' `NewGELUActivation`.
    GeluNew,
    /// [`Activation::GeluTanh`] in the operators of transformers' `FastGELUActivation`.
    GeluFast,
    /// `x * sigmoid(1.702 * x)` in the operators of transformers' `QuickGELUActivation`.
    GeluQuick,
    /// `x * sigmoid(x)`.
    Silu,
    /// `x` where it is greater than the threshold, which is not NaN, else 0.
    Fatrelu(f32),
}

/// Where roundings to the element type happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Roundings {
    /// Where torch's operators round: the same bits as their chain on a GPU.
    #[default]
    Exact,
    /// At the end, and with approximate reciprocals and exponentials (a few ulp of f32).
    Once,
}

choices! { Roundings: Exact, Once; }

impl<'t> Argument<'t> for Activation {
    /// A number of `oxiwarp/ops/activation.py`, and the threshold if the call has one.
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
            _ => {
                let (got, expected) = (kind as f64, "0 to 7");
                return Err(Error::Value { op, arg: "kind", got, expected }.into());
            }
        })
    }
}

impl Activation {
    /// As the kernels take it, for elements of `dtype`.
    pub(super) fn function(self, op: &'static str, dtype: Dtype, roundings: Roundings) -> Result<Function> {
        let function = Function::new(match self {
            Self::Gelu => Function::GELU,
            Self::GeluCuda13_2 => Function::GELU_CUDA_13_2,
            Self::GeluTanh => Function::GELU_TANH,
            Self::GeluNew => Function::GELU_NEW,
            Self::GeluFast => Function::GELU_FAST,
            Self::GeluQuick => Function::GELU_QUICK,
            Self::Silu => Function::SILU,
            // Infinities mean something, as to torch: nothing passes, or everything.
            Self::Fatrelu(threshold) if threshold.is_nan() => {
                let expected = "a number or an infinity";
                return Err(Error::Value { op, arg: "threshold", got: threshold.into(), expected });
            }
            Self::Fatrelu(threshold) => {
                // torch compares with the threshold as an element holds it.
                let threshold = match dtype {
                    Dtype::F32 | Dtype::I64 | Dtype::I32 | Dtype::Bool => threshold,
                    Dtype::F16 => f16::from_f32(threshold).to_f32(),
                    Dtype::Bf16 => bf16::from_f32(threshold).to_f32(),
                };
                return Ok(Function { threshold, ..Function::new(Function::FATRELU) });
            }
        });
        Ok(if roundings == Roundings::Once { function.once() } else { function })
    }
}

const OP: &str = "activation";

/// `y = f(x + bias)`.
///
/// `x` and `y` have one shape and dtype. Tensors without gaps may have any number of dimensions; others, and all where
/// there is a bias, have rows that two strides reach and a last dimension of stride 1. `bias` is `[columns]` of their
/// dtype. With no elements nothing happens. An element's bits depend on nothing but itself and its bias.
///
/// # Errors
/// Shapes, dtypes or strides that do not fit, a `y` that overlaps an input: nothing is written. See [`Error`] for the
/// rest.
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
    // SAFETY: the views were checked to be what the kernel's arguments mean.
    unsafe {
        launch.launch(
            device,
            ["activation_any", "activation_block1"],
            THREADS,
            stream,
            args![x, bias_base, y, p, launch.extent],
        )
    }
}

/// Checks that a bias has `x`'s dtype and the last size of `shape`; its address, or null.
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

/// Can it be read 16 bytes at a time? Null, for what is absent, can.
pub(super) fn is_aligned(base: *const u8) -> bool {
    (base as usize).is_multiple_of(16)
}
