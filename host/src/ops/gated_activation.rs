//! Gated activations such as GEGLU and SwiGLU: `y = first * f(second)` or `y = f(first) * second`. `first`
//! and `second` are the two halves of the input.
use cuda_std::row::Rows;
use kernels_gpu::elementwise::activations::{ActivationParams, GatedOperands as Operands};
use kernels_gpu::elementwise::partition::Extent;
use kernels_gpu::elementwise::partition::THREADS;
use kernels_gpu::ops::gated_activation::launch;

use super::activation::{Activation, Kernels, Roundings, check_bias, is_aligned};
use crate::arguments::{arguments, choices};
use crate::library::LaunchSite;
use crate::operands::overlap::expect_disjoint;
use crate::plan::elementwise::Elementwise;
use crate::{Device, Error, Result, Stream, View, ViewMut};

/// Selects the half of the input that is the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The gate is the first half of the columns, as in `silu_and_mul`.
    First,
    /// The gate is the second half of the columns, as in diffusers' GEGLU and SwiGLU.
    Second,
}

choices! { Gate: First, Second; }

arguments! {
    /// The parameters of a gated activation.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct GatedActivation {
        /// The function that is applied to the gate.
        pub activation: Activation,
        /// The half that is the gate.
        pub gate: Gate,
        /// The steps after which results are rounded to the element type.
        pub roundings: Roundings,
    }
}

const OP: &str = "gated_activation";
/// A function that launches a kernel of this op.
type GatedActivationKernel = unsafe fn(LaunchSite, Operands, Rows, ActivationParams, Extent) -> Result<()>;
const KERNELS: Kernels<GatedActivationKernel> = Kernels {
    selected: [launch::gated_activation_any, launch::gated_activation_block1],
    sigmoid: [launch::gated_activation_sigmoid_any, launch::gated_activation_sigmoid_block1],
    relu2: [launch::gated_activation_relu2_any, launch::gated_activation_relu2_block1],
};

/// The two halves of the input, by role. The op multiplies `x` by `f(gate)`.
pub(super) struct Halves<T> {
    pub x: T,
    pub gate: T,
}

impl Gate {
    /// Returns the halves `first` and `second` of the input as `x` and `gate`. `self` says which half is the
    /// gate.
    pub(super) fn name<T>(self, first: T, second: T) -> Halves<T> {
        match self {
            Self::First => Halves { x: second, gate: first },
            Self::Second => Halves { x: first, gate: second },
        }
    }
    /// Returns the name of the second input in error messages.
    pub(super) fn second_name(self) -> &'static str {
        match self {
            Self::First => "up",
            Self::Second => "gate",
        }
    }
}

/// Returns two views: the first half and the second half of the columns of `packed`.
pub(super) fn split<'a>(op: &'static str, arg: &'static str, packed: &View<'a>) -> Result<[View<'a>; 2]> {
    let Some((&last, outer)) = packed.shape().split_last().filter(|(last, _)| **last % 2 == 0) else {
        let expected = "an even last dimension: two halves, or a second tensor beside it".into();
        return Err(Error::Shape { op, arg, got: packed.shape().to_vec(), expected });
    };
    if last > 0 && packed.strides()[outer.len()] != 1 {
        return Err(packed.bad_strides(op, arg, "its last dimension must be contiguous"));
    }
    let shape: Vec<i64> = outer.iter().copied().chain([last / 2]).collect();
    let half = |skipped: i64| {
        let start = packed.ptr().cast::<u8>().wrapping_add(skipped as usize * packed.dtype().size());
        // SAFETY: the view covers one half of `packed`. All its elements are elements of `packed`, so they
        // are readable. The view has the lifetime of `packed`.
        unsafe { View::from_raw(start.cast(), packed.dtype(), &shape, packed.strides()) }
    };
    Ok([half(0)?, half(last / 2)?])
}

/// Checks the bias, which has the shape `[2 * columns]`. Returns two addresses: of the half of the bias that
/// is added to `x`, and of the half that is added to the gate.
pub(super) fn bias_halves(
    op: &'static str,
    device: &Device,
    bias: Option<&View>,
    first: &View,
    gate: Gate,
) -> Result<Halves<*const u8>> {
    let mut shape = first.shape().to_vec();
    let cols = shape.last().copied().unwrap_or(0);
    shape.iter_mut().last().into_iter().for_each(|last| *last *= 2);
    let base = check_bias(op, device, bias, first, &shape)?;
    let skipped = if base.is_null() { 0 } else { cols as usize * first.dtype().size() };
    Ok(gate.name(base, base.wrapping_add(skipped)))
}

/// Computes `y = first * f(second)`, or `y = f(first) * second` if `params.gate` is [`Gate::First`].
///
/// Without the argument `second`, `x` has the shape `[..., 2 * columns]` and contains both halves of the
/// input. With `second`, `x` is only the first half, and `x` and `second` have the shape `[..., columns]`.
/// `y` always has the shape `[..., columns]`. `bias` has the shape `[2 * columns]`. The first half of the
/// bias is added to `first`, and the second half to `second`, before `f` is applied. All tensors have the
/// same dtype, and can be viewed as `[n, m, columns]` without a copy.
///
/// If there are no rows, the call does nothing. The bits of an element of `y` depend only on its element of
/// `first`, its element of `second`, and their biases.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if `y` overlaps an
/// input. [`Error`] lists further errors, such as those of the GPU driver.
pub fn gated_activation(
    device: &Device,
    x: View,
    second: Option<View>,
    bias: Option<View>,
    y: ViewMut,
    params: GatedActivation,
    stream: Stream,
) -> Result<()> {
    let (y, gate) = (y.as_view(), params.gate);
    x.expect_on(OP, "x", device)?;
    let ([first, last], name) = match second {
        Some(second) => ([x, second], gate.second_name()),
        None => (split(OP, "x", &x)?, "x"),
    };
    let bias_base = bias_halves(OP, device, bias.as_ref(), &first, gate)?;
    let operands = [("x", &first), (name, &last), ("out", y)];
    let aligned = is_aligned(bias_base.x) && is_aligned(bias_base.gate);
    let launch = Elementwise::of(OP, device, operands, bias.is_some(), aligned)?;
    let others =
        [Some(("x", &x)), second.as_ref().map(|second| (name, second)), bias.as_ref().map(|b| ("bias", b))];
    expect_disjoint(OP, ("out", y), &others)?;

    let exact = u32::from(params.roundings == Roundings::Exact);
    let function = params.activation.function(OP, first.dtype(), params.roundings)?;
    let p = ActivationParams { function, exact };
    let [first, last, y] = launch.layout.operands;
    let Halves { x, gate } = gate.name(first, last);
    let operands = Operands { x, gate, bias_x: bias_base.x, bias_gate: bias_base.gate };
    launch.launch(device, KERNELS.of(params.activation), THREADS, stream, |kernel, site, extent| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, operands, y, p, extent) }
    })
}
