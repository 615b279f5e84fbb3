//! The gradients of [`gated_activation`](super::gated_activation::gated_activation).
use cuda_std::row::Rows;
use kernels_gpu::elementwise::activations::{ActivationParams, GatedOperands as Operands};
use kernels_gpu::elementwise::partition::Extent;
use kernels_gpu::elementwise::partition::THREADS;
use kernels_gpu::ops::gated_activation_backward::launch;

use super::activation::{Kernels, Roundings, is_aligned};
use super::gated_activation::{GatedActivation, Halves, bias_halves, split};
use crate::library::LaunchSite;
use crate::operands::overlap::expect_disjoint;
use crate::plan::elementwise::Elementwise;
use crate::{Device, Result, Stream, View, ViewMut};

const OP: &str = "gated_activation_backward";
/// A function that launches a kernel of this op.
type GatedActivationBackwardKernel =
    unsafe fn(LaunchSite, Rows, Operands, Rows, Rows, ActivationParams, Extent) -> Result<()>;
const KERNELS: Kernels<GatedActivationBackwardKernel> = Kernels {
    selected: [launch::gated_activation_backward_any, launch::gated_activation_backward_block1],
    sigmoid: [
        launch::gated_activation_backward_sigmoid_any,
        launch::gated_activation_backward_sigmoid_block1,
    ],
    relu2: [launch::gated_activation_backward_relu2_any, launch::gated_activation_backward_relu2_block1],
};

/// Computes the gradients of both halves of the input: `dy * f(gate)` for `x`, and `dy * x * f'(gate)` for
/// the gate. Each gradient is computed in f32 and rounded once.
///
/// `x`, `second` and `bias` are the arguments of the forward pass. `dy` has the shape `[..., columns]`, and
/// `dx` has the shape `[..., 2 * columns]`. `dx` receives both gradients in the order of the halves, even if
/// the forward pass had two input tensors. This function does not compute the gradient of the bias. That
/// gradient is the sum of `dx` over the rows, which the caller can compute.
///
/// # Errors
/// Returns the errors of [`gated_activation`](super::gated_activation::gated_activation).
pub fn gated_activation_backward(
    device: &Device,
    dy: View,
    x: View,
    second: Option<View>,
    bias: Option<View>,
    dx: ViewMut,
    params: GatedActivation,
    stream: Stream,
) -> Result<()> {
    let (dx, gate) = (dx.as_view(), params.gate);
    x.expect_on(OP, "x", device)?;
    dx.expect_on(OP, "dx", device)?;
    let ([first, last], name) = match second {
        Some(second) => ([x, second], gate.second_name()),
        None => (split(OP, "x", &x)?, "x"),
    };
    let [dfirst, dlast] = split(OP, "dx", dx)?;
    let bias_base = bias_halves(OP, device, bias.as_ref(), &first, gate)?;
    let operands = [("x", &first), (name, &last), ("dy", &dy), ("dx", &dfirst), ("dx", &dlast)];
    let aligned = is_aligned(bias_base.x) && is_aligned(bias_base.gate);
    let launch = Elementwise::of(OP, device, operands, bias.is_some(), aligned)?;
    let others = [
        Some(("x", &x)),
        second.as_ref().map(|second| (name, second)),
        Some(("dy", &dy)),
        bias.as_ref().map(|bias| ("bias", bias)),
    ];
    expect_disjoint(OP, ("dx", dx), &others)?;

    let exact = u32::from(params.roundings == Roundings::Exact);
    let function = params.activation.function(OP, first.dtype(), Roundings::Once)?;
    let p = ActivationParams { function, exact };
    let [first, last, dy, dfirst, dlast] = launch.layout.operands;
    let (Halves { x, gate }, Halves { x: dx, gate: dgate }) =
        (gate.name(first, last), gate.name(dfirst, dlast));
    let operands = Operands { x, gate, bias_x: bias_base.x, bias_gate: bias_base.gate };
    launch.launch(device, KERNELS.of(params.activation), THREADS, stream, |kernel, site, extent| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, dy, operands, dx, dgate, p, extent) }
    })
}
