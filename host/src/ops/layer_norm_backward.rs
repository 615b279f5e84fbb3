//! Gradients of LayerNorm with respect to its input, weight and bias.
use kernels_gpu::ops::layer_norm_backward::launch;

use crate::plan::norm_backward::{Given, NormOp, ParameterGradients};
use crate::{Affine, Device, Result, Stream, View, ViewMut};

const NORM: NormOp = NormOp {
    op: "layer_norm_backward",
    layer: true,
    any_layout: launch::layer_norm_backward_any,
    block4: launch::layer_norm_backward_block4,
    multi_row: Some([launch::layer_norm_backward_rows2_block2, launch::layer_norm_backward_block3]),
    sums: launch::layer_norm_backward_sums_any,
};

/// Computes the gradients of [`layer_norm`](crate::layer_norm). `dx` is always computed. The gradients of
/// weight and bias are computed if `gradients` has outputs for them.
///
/// The tensors have the shapes and dtypes that [`rms_norm_backward`](crate::rms_norm_backward) specifies. The
/// present function does not read the bias in `affine`, because no gradient depends on the bias.
///
/// # Errors
/// Returns the errors of [`rms_norm_backward`](crate::rms_norm_backward).
pub fn layer_norm_backward(
    device: &Device,
    dy: View,
    x: View,
    affine: Affine,
    dsum: Option<View>,
    dx: ViewMut,
    gradients: ParameterGradients,
    eps: f32,
    stream: Stream,
) -> Result<()> {
    let (weight, dsum) = (affine.weight.as_ref(), dsum.as_ref());
    let given = Given { dy: &dy, x: &x, weight, dsum, dx: dx.as_view() };
    NORM.run(device, given, gradients, [eps, 0.0], stream)
}
