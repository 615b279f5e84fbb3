//! Gradients of RMSNorm with respect to its input and its weight.
use kernels_gpu::ops::rms_norm_backward::launch;

use super::rms_norm::RmsNorm;
use crate::plan::norm_backward::{Given, NormOp, ParameterGradients};
use crate::{Device, Error, Result, Stream, View, ViewMut};

const NORM: NormOp = NormOp {
    op: "rms_norm_backward",
    layer: false,
    any_layout: launch::rms_norm_backward_any,
    block4: launch::rms_norm_backward_block4,
    multi_row: None,
    sums: launch::rms_norm_backward_sums_any,
};

/// Computes the gradients of [`rms_norm`](crate::rms_norm). `dx` is always computed. The gradient of the
/// weight is computed if `gradients` has an output for it.
///
/// `dy`, `x`, `dx` and the optional `dsum` have the same shape and dtype. These tensors must be viewable as
/// `[n, m, columns]` without a copy, with the same `n` and `m`. `dsum` is for a forward pass like
/// `add_rms_norm`, which normalized a sum and also returned this sum. In this case, pass the incoming
/// gradient of the sum as `dsum`. The function adds `dsum` to `dx`.
///
/// The weight has the shape `[columns]`. If the rows form `groups` groups of equal size, each with its own
/// weight, the shape is `[groups, columns]`. The dtype of the weight is the dtype of `x` or f32. The
/// gradients are computed in f32 from the unnormalized `x` and rounded once. `params.rounding` has no effect.
///
/// The bits of a row of `dx` do not depend on the other rows of the inputs. The gradient of the weight has
/// the shape of the weight and is a sum over rows. The order of this sum depends on shape, dtype, alignment
/// and architecture.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported, or if an output
/// overlaps another argument. The same applies if `eps` is negative or not finite, or if the workspace is too
/// small. [`Error`] lists further errors, such as those of the GPU driver.
pub fn rms_norm_backward(
    device: &Device,
    dy: View,
    x: View,
    weight: Option<View>,
    dsum: Option<View>,
    dx: ViewMut,
    gradients: ParameterGradients,
    params: RmsNorm,
    stream: Stream,
) -> Result<()> {
    if let Some(dbias) = &gradients.dbias {
        let (got, expected) = (dbias.as_view().shape().to_vec(), "none: there is no bias".into());
        return Err(Error::Shape { op: NORM.op, arg: "dbias", got, expected });
    }
    let (weight, dsum) = (weight.as_ref(), dsum.as_ref());
    let given = Given { dy: &dy, x: &x, weight, dsum, dx: dx.as_view() };
    NORM.run(device, given, gradients, [params.eps, params.weight_offset], stream)
}

/// Computes the gradients of [`rms_norm_affine`](crate::rms_norm_affine), except the gradient of the bias.
///
/// `dy`, `x` and `dx` have the same dtype and the same shape `[rows, heads, columns]`. Rows and heads may
/// have any strides. The weight has the shape `[heads, columns]`, or `[columns]` for all heads. All other
/// properties are those of [`rms_norm_backward`].
///
/// # Errors
/// Returns the errors of [`rms_norm_backward`]. Also fails if `x` does not have three dimensions.
pub fn rms_norm_affine_backward(
    device: &Device,
    dy: View,
    x: View,
    weight: View,
    dx: ViewMut,
    gradients: ParameterGradients,
    params: RmsNorm,
    stream: Stream,
) -> Result<()> {
    for (arg, view) in [("x", &x), ("dy", &dy), ("dx", dx.as_view())] {
        if view.shape().len() != 3 {
            let (got, expected) = (view.shape().to_vec(), "[rows, heads, columns]".into());
            return Err(Error::Shape { op: NORM.op, arg, got, expected });
        }
    }
    let heads = x.shape()[1];
    if weight.shape().len() > 1 && weight.shape()[0] != heads {
        let (got, expected) = (weight.shape().to_vec(), format!("[{heads}, {}]", x.shape()[2]));
        return Err(Error::Shape { op: NORM.op, arg: "weight", got, expected });
    }
    // The rows of a head are the group of rows that share a weight. The kernels take the rows of a group one
    // after the other, so the heads become the first dimension.
    let [dy, x, dx] = [dy, x, *dx.as_view()].map(|view| view.transposed(0, 1));
    let given = Given { dy: &dy, x: &x, weight: Some(&weight), dsum: None, dx: &dx };
    NORM.run(device, given, gradients, [params.eps, params.weight_offset], stream)
}
