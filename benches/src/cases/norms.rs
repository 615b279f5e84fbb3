//! Calls of the norms whose threads load four elements at a time, and of their gradients.
use oxiwarp::{
    AdaNorm, Affine, Device, GateGradient, GatedResidual, Modulation, Norm, ParameterGradients, Result,
    RmsNorm, Rounding, ScaleShift, Stream, View, gated_residual_backward_workspace, norm_backward_workspace,
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

const LAYER: AdaNorm =
    AdaNorm { norm: Norm::Layer, eps: 1e-6, exact: true, rounding: Rounding::BeforeWeight };
const RMS: AdaNorm = AdaNorm { norm: Norm::Rms, ..LAYER };
/// The norm `torch.nn.RMSNorm`.
const FUSED_RMS: AdaNorm = AdaNorm { rounding: Rounding::Once, ..RMS };

fn ada_norm(params: AdaNorm, device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let ((_, by), shape, [y, ..]) = (parameters(&t)?, t.shape(), t.y);
    oxiwarp::ada_norm(
        device,
        t.x[0].view(&shape)?,
        by,
        Affine::default(),
        None,
        y.view_mut(&shape)?,
        params,
        stream,
    )
}

pub(super) fn ada_norm_layer(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    ada_norm(LAYER, device, t, stream)
}

pub(super) fn ada_norm_rms(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    ada_norm(RMS, device, t, stream)
}

pub(super) fn ada_norm_fused_rms(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    ada_norm(FUSED_RMS, device, t, stream)
}

/// Returns scale and shift with two rows each, and an index with the row for each row of `x`.
fn chosen<'a>(t: &Operands<'a>) -> Result<(ScaleShift<'a>, View<'a>)> {
    let [rows, cols] = t.shape();
    let [scale, shift] = [t.vectors[0].view(&[2, cols])?, t.vectors[1].view(&[2, cols])?];
    Ok((ScaleShift { scale: scale.into(), shift: Some(shift.into()) }, t.targets.view(&[rows])?))
}

/// An index chooses the rows of scale and shift.
pub(super) fn ada_norm_index(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let ((by, index), shape, [y, ..]) = (chosen(&t)?, t.shape(), t.y);
    let (x, y) = (t.x[0].view(&shape)?, y.view_mut(&shape)?);
    oxiwarp::ada_norm(device, x, by, Affine::default(), Some(index), y, LAYER, stream)
}

/// An index chooses the rows of scale and shift.
pub(super) fn modulate_index(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let ((by, index), shape, [y, ..]) = (chosen(&t)?, t.shape(), t.y);
    let (x, y, shift) = (t.x[0].view(&shape)?, y.view_mut(&shape)?, by.shift.map(|shift| shift.value));
    oxiwarp::modulate(device, x, by.scale.value, shift, Some(index), y, true, stream)
}

/// An index chooses the row of the gate.
pub(super) fn gated_residual_index(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [sum, ..]) = (t.shape(), t.y);
    let (gate, index) = (t.vectors[0].view(&[2, shape[1]])?, t.targets.view(&shape[..1])?);
    let (x, y, sum) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?, sum.view_mut(&shape)?);
    oxiwarp::gated_residual(device, x, y, gate.into(), Some(index), sum, GatedResidual::default(), stream)
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

fn gated_residual_ada_norm(
    norm: AdaNorm,
    gate: View,
    device: &Device,
    t: Operands,
    stream: Stream,
) -> Result<()> {
    let ((_, by), shape, [normed, sum, _]) = (parameters(&t)?, t.shape(), t.y);
    let params = (norm, GatedResidual::default());
    let inputs = [t.x[0].view(&shape)?, t.x[1].view(&shape)?];
    let results = [normed.view_mut(&shape)?, sum.view_mut(&shape)?];
    let gate = Some(gate.into());
    oxiwarp::gated_residual_ada_norm(
        device,
        inputs,
        gate,
        by,
        Affine::default(),
        None,
        results,
        params,
        stream,
    )
}

pub(super) fn gated_residual_ada_norm_layer(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    gated_residual_ada_norm(LAYER, t.vector(0, t.cols)?, device, t, stream)
}

pub(super) fn gated_residual_ada_norm_rms(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    gated_residual_ada_norm(RMS, t.vector(0, t.cols)?, device, t, stream)
}

pub(super) fn gated_residual_ada_norm_fused_rms(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    gated_residual_ada_norm(FUSED_RMS, t.vector(0, t.cols)?, device, t, stream)
}

/// The gate has one number for each row.
pub(super) fn gated_residual_ada_norm_per_row(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    gated_residual_ada_norm(LAYER, t.x[2].view(&[t.shape()[0], 1])?, device, t, stream)
}

fn norm_gated_residual(norm: AdaNorm, device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let ((affine, by), shape, [out, ..]) = (parameters(&t)?, t.shape(), t.y);
    let affine = if norm.norm == Norm::Rms { Affine { bias: None, ..affine } } else { affine };
    let (inputs, out) = ([t.x[0].view(&shape)?, t.x[1].view(&shape)?], out.view_mut(&shape)?);
    oxiwarp::norm_gated_residual(device, inputs, Some(by.scale.value), affine, out, norm, stream)
}

pub(super) fn norm_gated_residual_layer(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    norm_gated_residual(LAYER, device, t, stream)
}

pub(super) fn norm_gated_residual_rms(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    norm_gated_residual(RMS, device, t, stream)
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
