//! Calls of RMSNorm, softmax, cross-entropy, element-wise ops and RoPE with the operands of a benchmark.
use oxiwarp::{
    Activation, Angles, CrossEntropy, Device, Dtype, Fp8Scaling, Gate, GatedActivation, GatedResidual, Heads,
    HeadsOrder, QkNorm, QkNormRope, Result, RmsNorm, RmsNormGated, Rope, Roundings, Stream, ViewMut,
};

use super::Operands;
use super::attention::HEAD;

pub(super) fn rms_norm(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (weight, shape, [y, ..]) = (t.vector(0, t.cols)?, t.shape(), t.y);
    oxiwarp::rms_norm(
        device,
        t.x[0].view(&shape)?,
        Some(weight),
        y.view_mut(&shape)?,
        RmsNorm::default(),
        stream,
    )
}

pub(super) fn add_rms_norm(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (weight, shape, [y, sum, _]) = (t.vector(0, t.cols)?, t.shape(), t.y);
    let (x, residual) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?);
    let (y, sum) = (y.view_mut(&shape)?, sum.view_mut(&shape)?);
    oxiwarp::add_rms_norm(device, x, residual, Some(weight), y, sum, RmsNorm::default(), stream)
}

pub(super) fn rms_norm_gated(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (weight, shape, [y, ..]) = (t.vector(0, t.cols)?, t.shape(), t.y);
    let (x, gate, y) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?, y.view_mut(&shape)?);
    oxiwarp::rms_norm_gated(device, x, gate, Some(weight), y, RmsNormGated::default(), stream)
}

pub(super) fn softmax(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [y, ..]) = (t.shape(), t.y);
    oxiwarp::softmax(device, t.x[0].view(&shape)?, y.view_mut(&shape)?, false, stream)
}

pub(super) fn softmax_backward(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [dx, ..]) = (t.shape(), t.y);
    oxiwarp::softmax_backward(
        device,
        t.x[0].view(&shape)?,
        t.x[1].view(&shape)?,
        dx.view_mut(&shape)?,
        false,
        stream,
    )
}

pub(super) fn cross_entropy(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [loss, lse]) = (t.shape(), t.singles);
    let (x, targets) = (t.x[0].view(&shape)?, t.targets.view(&shape[..1])?);
    let (loss, lse) = (loss.view_mut(&shape[..1])?, lse.view_mut(&shape[..1])?);
    oxiwarp::cross_entropy(device, x, targets, None, loss, lse, CrossEntropy::default(), stream)
}

/// Label smoothing with weights of the classes.
const SMOOTHED: CrossEntropy =
    CrossEntropy { ignore_index: -100, label_smoothing: 0.1, z_loss: 0.0, softcap: 0.0 };

pub(super) fn cross_entropy_weight(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (weight, shape, [loss, lse]) = (t.vector(0, t.cols)?, t.shape(), t.singles);
    let (x, targets) = (t.x[0].view(&shape)?, t.targets.view(&shape[..1])?);
    let (loss, lse) = (loss.view_mut(&shape[..1])?, lse.view_mut(&shape[..1])?);
    oxiwarp::cross_entropy(device, x, targets, Some(weight), loss, lse, SMOOTHED, stream)
}

pub(super) fn cross_entropy_backward_weight(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (weight, shape, [dx, ..]) = (t.vector(0, t.cols)?, t.shape(), t.y);
    let (x, targets) = (t.x[0].view(&shape)?, t.targets.view(&shape[..1])?);
    let (lse, dloss) = (t.logarithms.view(&shape[..1])?, t.dloss.view(&shape[..1])?);
    let dx = dx.view_mut(&shape)?;
    oxiwarp::cross_entropy_backward(device, x, targets, Some(weight), lse, dloss, dx, SMOOTHED, stream)
}

pub(super) fn cross_entropy_backward(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [dx, ..]) = (t.shape(), t.y);
    let (x, targets) = (t.x[0].view(&shape)?, t.targets.view(&shape[..1])?);
    let (lse, dloss) = (t.logarithms.view(&shape[..1])?, t.dloss.view(&shape[..1])?);
    let dx = dx.view_mut(&shape)?;
    oxiwarp::cross_entropy_backward(device, x, targets, None, lse, dloss, dx, CrossEntropy::default(), stream)
}

pub(super) fn activation(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [y, ..]) = (t.shape(), t.y);
    let (x, y) = (t.x[0].view(&shape)?, y.view_mut(&shape)?);
    oxiwarp::activation(device, x, None, y, Activation::GeluTanh, Roundings::Exact, stream)
}

pub(super) fn activation_backward(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [dx, ..]) = (t.shape(), t.y);
    let (dy, x, dx) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?, dx.view_mut(&shape)?);
    oxiwarp::activation_backward(device, dy, x, None, dx, Activation::GeluTanh, Roundings::Exact, stream)
}

/// The gated GELU (GEGLU) of SDXL.
const GEGLU: GatedActivation =
    GatedActivation { activation: Activation::Gelu, gate: Gate::Second, roundings: Roundings::Exact };

pub(super) fn gated_activation(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [y, ..]) = (t.shape(), t.y);
    let (x, second, y) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?, y.view_mut(&shape)?);
    oxiwarp::gated_activation(device, x, Some(second), None, y, GEGLU, stream)
}

pub(super) fn gated_activation_backward(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let ([rows, cols], [dx, ..]) = (t.shape(), t.y);
    let (shape, both) = ([rows, cols], [rows, 2 * cols]);
    let (dy, x, second) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?, t.x[2].view(&shape)?);
    oxiwarp::gated_activation_backward(device, dy, x, Some(second), None, dx.view_mut(&both)?, GEGLU, stream)
}

pub(super) fn gated_residual(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (gate, shape, [sum, ..]) = (t.vector(0, t.cols)?, t.shape(), t.y);
    let (x, y, sum) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?, sum.view_mut(&shape)?);
    oxiwarp::gated_residual(device, x, y, gate.into(), None, sum, GatedResidual::default(), stream)
}

/// The gate is one number per row.
pub(super) fn gated_residual_per_row(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [sum, ..]) = (t.shape(), t.y);
    let (x, y, gate) = (t.x[0].view(&shape)?, t.x[1].view(&shape)?, t.x[2].view(&[shape[0], 1])?);
    let sum = sum.view_mut(&shape)?;
    oxiwarp::gated_residual(device, x, y, gate.into(), None, sum, GatedResidual::default(), stream)
}

pub(super) fn modulate(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (scale, shift, shape, [y, ..]) = (t.vector(0, t.cols)?, t.vector(1, t.cols)?, t.shape(), t.y);
    oxiwarp::modulate(
        device,
        t.x[0].view(&shape)?,
        scale,
        Some(shift),
        None,
        y.view_mut(&shape)?,
        true,
        stream,
    )
}

pub(super) fn quantize_fp8(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    quantized(device, t, stream, Fp8Scaling::PerRow)
}

pub(super) fn quantize_fp8_per_block(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    quantized(device, t, stream, Fp8Scaling::PerBlock)
}

/// Quantizes rows to e4m3. The values take half of a bf16 result. The scales of a block are contiguous, as in
/// the layout that products read. They have no padding, so that all f32 results are written.
fn quantized(device: &Device, t: Operands, stream: Stream, scaling: Fp8Scaling) -> Result<()> {
    let ([rows, cols], [bytes, ..], [scales, _]) = (t.shape(), t.y, t.singles);
    let bytes = bytes.view_mut(&[rows, cols / 2])?;
    // SAFETY: the view covers the memory of `bytes`, in which a row of `cols / 2` bf16 has `cols` bytes.
    // Nothing else accesses this memory during the call.
    let values = unsafe {
        ViewMut::from_raw(bytes.as_view().ptr().cast_mut(), Dtype::E4m3, &[rows, cols], &[cols, 1])
    }?;
    let (shape, _) = scaling.layout(&[rows, cols]);
    let scales = scales.view_strided_mut(0, &shape, &[1, rows])?;
    oxiwarp::quantize_fp8(device, t.x[0].view(&[rows, cols])?, scaling, values, scales, stream)
}

/// Applies RoPE to queries and keys of shape `[1, rows, cols]` with head dimension 128. If `params` is given,
/// QK norm precedes RoPE. The cos and sin tables have shape `[rows, 128]`. If `chosen` is true, positions
/// choose the rows of the tables.
fn on_heads(
    device: &Device,
    t: Operands,
    stream: Stream,
    params: Option<QkNormRope>,
    chosen: bool,
) -> Result<()> {
    let weight = match params {
        Some(params) => Some(t.vector(0, if params.across_heads { t.cols } else { HEAD })?),
        None => None,
    };
    let (shape, table, [q_out, k_out, _]) = ([1, t.rows, t.cols], [t.rows, HEAD], t.y);
    let (cos, sin) = (t.x[2].view(&table)?, t.x[3].view(&table)?);
    let affine = oxiwarp::Affine { weight, bias: None };
    let q = Heads { x: t.x[0].view(&shape)?, affine, y: q_out.view_mut(&shape)? };
    let k = Heads { x: t.x[1].view(&shape)?, affine, y: k_out.view_mut(&shape)? };
    let positions = if chosen { Some(t.targets.view(&[t.rows])?) } else { None };
    let rope = Rope { positions, ..Rope::new(Angles::Tables { cos, sin }, true) };
    match params {
        Some(params) => oxiwarp::qk_norm_rope(device, Some(q), Some(k), Some(rope), params, stream),
        None => oxiwarp::rope(device, Some(q), Some(k), rope, HeadsOrder::TokensFirst, Some(HEAD), stream),
    }
}

pub(super) fn rope(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    on_heads(device, t, stream, None, false)
}

pub(super) fn rope_positions(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    on_heads(device, t, stream, None, true)
}

pub(super) fn qk_norm_rope(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let params = QkNormRope { norm: QkNorm::Rms, head_dim: Some(HEAD), ..QkNormRope::default() };
    on_heads(device, t, stream, Some(params), false)
}

pub(super) fn qk_norm_rope_positions(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let params = QkNormRope { norm: QkNorm::Rms, head_dim: Some(HEAD), ..QkNormRope::default() };
    on_heads(device, t, stream, Some(params), true)
}

pub(super) fn qk_norm_rope_across(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let params =
        QkNormRope { norm: QkNorm::Rms, head_dim: Some(HEAD), across_heads: true, ..QkNormRope::default() };
    on_heads(device, t, stream, Some(params), false)
}
