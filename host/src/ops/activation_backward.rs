//! The gradient of [`activation`](super::activation::activation).
use cuda_std::row::Rows;
use kernels_gpu::elementwise::activations::ActivationParams;
use kernels_gpu::elementwise::partition::Extent;
use kernels_gpu::elementwise::partition::THREADS;
use kernels_gpu::ops::activation_backward::launch;

use super::activation::{Activation, Kernels, Roundings, check_bias, is_aligned};
use crate::library::LaunchSite;
use crate::operands::overlap::expect_disjoint;
use crate::plan::elementwise::Elementwise;
use crate::{Device, Result, Stream, View, ViewMut};

const OP: &str = "activation_backward";
/// A function that launches a kernel of this op.
type ActivationBackwardKernel =
    unsafe fn(LaunchSite, Rows, Rows, *const u8, Rows, ActivationParams, Extent) -> Result<()>;
const KERNELS: Kernels<ActivationBackwardKernel> = Kernels {
    selected: [launch::activation_backward_any, launch::activation_backward_block1],
    sigmoid: [launch::activation_backward_sigmoid_any, launch::activation_backward_sigmoid_block1],
    relu2: [launch::activation_backward_relu2_any, launch::activation_backward_relu2_block1],
};

/// Computes `dx = dy * f'(x + bias)` in f32 and rounds `dx` once. Pass the same `roundings` as in the forward
/// pass. If the forward pass rounded `x + bias`, this function also rounds `x + bias`.
///
/// `dy`, `x` and `dx` have the shape and dtype of the `x` in the forward pass. This function does not compute
/// the gradient of the bias. That gradient is the sum of `dx` over the rows, which the caller can compute.
///
/// # Errors
/// Returns the errors of [`activation`](super::activation::activation).
pub fn activation_backward(
    device: &Device,
    dy: View,
    x: View,
    bias: Option<View>,
    dx: ViewMut,
    f: Activation,
    roundings: Roundings,
    stream: Stream,
) -> Result<()> {
    let dx = dx.as_view();
    let bias_base = check_bias(OP, device, bias.as_ref(), &x, x.shape())?;
    let operands = [("x", &x), ("dy", &dy), ("dx", dx)];
    let launch = Elementwise::of(OP, device, operands, bias.is_some(), is_aligned(bias_base))?;
    let others = [Some(("x", &x)), Some(("dy", &dy)), bias.as_ref().map(|bias| ("bias", bias))];
    expect_disjoint(OP, ("dx", dx), &others)?;
    let function = f.function(OP, x.dtype(), Roundings::Once)?;
    let exact = u32::from(roundings == Roundings::Exact);
    let p = ActivationParams { function, exact };
    let [x, dy, dx] = launch.layout.operands;
    launch.launch(device, KERNELS.of(f), THREADS, stream, |kernel, site, extent| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, dy, x, bias_base, dx, p, extent) }
    })
}
