//! Calls of the norms whose threads load four elements at a time, and of their gradients.
use oxiwarp::{
    AdaNorm, Affine, Device, GateGradient, GatedResidual, Modulation, Norm, ParameterGradients, Result,
    RmsNorm, ScaleShift, Stream, gated_residual_backward_workspace, norm_backward_workspace,
};

use super::Operands;

/// Returns the weight and bias of a norm, and the scale and shift of a modulation. Each of the four is a
/// vector with one value per column.
fn parameters<'a>(t: &Operands<'a>) -> Result<(Affine<'a>, ScaleShift<'a>)> {
    let [weight, bias, scale, shift] =
        [t.vector(0, t.cols)?, t.vector(1, t.cols)?, t.vector(2, t.cols)?, t.vector(3, t.cols)?];
    let by = ScaleShift { scale: scale.into(), shift: Some(shift.into()) };
    Ok((Affine { weight: Some(weight), bias: Some(bias) }, by))
}

pub(super) fn layer_norm(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let ((affine, _), shape, [y, ..]) = (parameters(&t)?, t.shape(), t.y);
    oxiwarp::layer_norm(device, t.x[0].view(&shape)?, affine, y.view_mut(&shape)?, 1e-6, stream)
}

fn ada_norm(norm: Norm, device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let ((_, by), shape, [y, ..]) = (parameters(&t)?, t.shape(), t.y);
    let params = AdaNorm { norm, ..AdaNorm::default() };
    oxiwarp::ada_norm(
        device,
        t.x[0].view(&shape)?,
        by,
        Affine::default(),
        y.view_mut(&shape)?,
        params,
        stream,
    )
}

pub(super) fn ada_norm_layer(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    ada_norm(Norm::Layer, device, t, stream)
}

pub(super) fn ada_norm_rms(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    ada_norm(Norm::Rms, device, t, stream)
}

pub(super) fn ada_norm_pair(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let ((affine, by), shape, [y, y2, _]) = (parameters(&t)?, t.shape(), t.y);
    let more = ScaleShift {
        scale: affine.weight.expect("it has one").into(),
        shift: affine.bias.map(Modulation::from),
    };
    let (x, results) = (t.x[0].view(&shape)?, [y.view_mut(&shape)?, y2.view_mut(&shape)?]);
    oxiwarp::ada_norm_pair(device, x, [by, more], Affine::default(), results, AdaNorm::default(), stream)
}

fn gated_residual_ada_norm(norm: Norm, device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let ((affine, by), shape, [normed, sum, _]) = (parameters(&t)?, t.shape(), t.y);
    let params = (AdaNorm { norm, ..AdaNorm::default() }, GatedResidual::default());
    let inputs = [t.x[0].view(&shape)?, t.x[1].view(&shape)?];
    let results = [normed.view_mut(&shape)?, sum.view_mut(&shape)?];
    let gate = affine.weight.map(Modulation::from);
    oxiwarp::gated_residual_ada_norm(device, inputs, gate, by, Affine::default(), results, params, stream)
}

pub(super) fn gated_residual_ada_norm_layer(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    gated_residual_ada_norm(Norm::Layer, device, t, stream)
}

pub(super) fn gated_residual_ada_norm_rms(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    gated_residual_ada_norm(Norm::Rms, device, t, stream)
}

pub(super) fn tanh_gated(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (gate, shape, [y, ..]) = (t.vector(0, t.cols)?, t.shape(), t.y);
    let inputs = [t.x[0].view(&shape)?, t.x[1].view(&shape)?];
    oxiwarp::residual_tanh_gated_rms_norm(device, inputs, gate, y.view_mut(&shape)?, 1e-6, stream)
}

pub(super) fn tanh_gated_modulated(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (gate, scale, shape, [normed, y, _]) = (t.vector(0, t.cols)?, t.vector(1, t.cols)?, t.shape(), t.y);
    let inputs = [t.x[0].view(&shape)?, t.x[1].view(&shape)?];
    let results = [normed.view_mut(&shape)?, y.view_mut(&shape)?];
    oxiwarp::residual_tanh_gated_rms_norm_modulated(device, inputs, gate, scale.into(), results, 1e-6, stream)
}

/// The gate has one row for all rows of `y`.
pub(super) fn gated_residual_backward(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (gate, shape, cols, [dy, ..], [dgate, ..]) =
        (t.vector(0, t.cols)?, t.shape(), [t.cols], t.y, t.singles);
    let (dsum, y) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?);
    let needed = gated_residual_backward_workspace(device, &y, &cols) as i64;
    let gradient = GateGradient {
        dgate: Some(dgate.view_mut(&cols)?),
        workspace: Some(t.workspace.view_mut(&[needed])?),
    };
    oxiwarp::gated_residual_backward(device, dsum, y, gate, dy.view_mut(&shape)?, gradient, stream)
}

/// The gate has one row for each row of `y`.
pub(super) fn gated_residual_backward_per_token(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [dy, dgate, _]) = (t.shape(), t.y);
    let (dsum, y, gate) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?, t.x[2].view(&shape)?);
    let gradient = GateGradient { dgate: Some(dgate.view_mut(&shape)?), workspace: None };
    oxiwarp::gated_residual_backward(device, dsum, y, gate, dy.view_mut(&shape)?, gradient, stream)
}

/// The gate has one number for each row of `y`.
pub(super) fn gated_residual_backward_per_row(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [dy, dgate, _]) = (t.shape(), t.y);
    let of_gate = [shape[0], 1];
    let (dsum, y, gate) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?, t.x[2].view(&of_gate)?);
    let gradient = GateGradient { dgate: Some(dgate.view_mut(&of_gate)?), workspace: None };
    oxiwarp::gated_residual_backward(device, dsum, y, gate, dy.view_mut(&shape)?, gradient, stream)
}

pub(super) fn rms_norm_backward(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (weight, shape, cols, [dx, ..], [dweight, ..]) =
        (t.vector(0, t.cols)?, t.shape(), [t.cols], t.y, t.singles);
    let (dy, x) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?);
    let needed = norm_backward_workspace(device, &x, &cols, 1) as i64;
    let gradients = ParameterGradients {
        dweight: Some(dweight.view_mut(&cols)?),
        dbias: None,
        workspace: Some(t.workspace.view_mut(&[needed])?),
    };
    let dx = dx.view_mut(&shape)?;
    oxiwarp::rms_norm_backward(device, dy, x, Some(weight), None, dx, gradients, RmsNorm::default(), stream)
}

pub(super) fn layer_norm_backward(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (weight, shape, cols) = (t.vector(0, t.cols)?, t.shape(), [t.cols]);
    let ([dx, ..], [dweight, dbias]) = (t.y, t.singles);
    let (dy, x) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?);
    let needed = norm_backward_workspace(device, &x, &cols, 2) as i64;
    let gradients = ParameterGradients {
        dweight: Some(dweight.view_mut(&cols)?),
        dbias: Some(dbias.view_mut(&cols)?),
        workspace: Some(t.workspace.view_mut(&[needed])?),
    };
    oxiwarp::layer_norm_backward(
        device,
        dy,
        x,
        Affine { weight: Some(weight), bias: None },
        None,
        dx.view_mut(&shape)?,
        gradients,
        1e-6,
        stream,
    )
}
