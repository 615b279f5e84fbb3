//! The gradients of an RMSNorm: of its input and its weight.
use super::rms_norm::RmsNorm;
use crate::plan::norm_backward::{Given, NormOp, ParameterGradients};
use crate::{Device, Error, Result, Stream, View, ViewMut};

const NORM: NormOp = NormOp {
    op: "rms_norm_backward",
    layer: false,
    any_layout: "rms_norm_backward_any",
    block4: "rms_norm_backward_block4",
    multi_row: None,
    sums: "rms_norm_backward_sums_any",
};

/// The gradients of [`rms_norm`](crate::rms_norm): `dx`, and that of the weight where it is wanted.
///
/// `dy`, `x`, `dx` and `dsum`, which is added to `dx` (the gradient of a sum that was normalised, as it comes back past
/// the norm), have one shape and dtype, any strides whose last is 1 and whose rows two strides reach. The weight is
/// `[columns]`, or `[groups, columns]` where equal groups of rows have one each; of their dtype or f32. Computed in f32
/// from `x`, rounded once; `params.rounding` makes no difference. A row of `dx` has the same bits whatever the other
/// rows. The gradient of the weight, of its shape, is a sum over rows in an order that depends on the shape, the dtype,
/// the alignment and the architecture.
///
/// # Errors
/// Shapes, dtypes or strides that do not fit, a negative or NaN eps, a workspace that is too small, results that overlap
/// each other or an input: nothing is written. See [`Error`] for the rest.
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
