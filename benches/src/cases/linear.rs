//! Benchmark calls of the matrix product `linear`, with the weight of FLUX.1's output projections. A
//! benchmark gives its tensor size as `rows` and `cols`. Here, `rows` is the batch size, and `cols` is the
//! number of tokens.
use oxiwarp::{Activation, Device, Gate, GatedActivation, Result, Roundings, Stream};

use super::{Operands, Width};

/// Number of rows and columns of the weight.
const SIZE: i64 = 3_072;

/// Elements per batch of `x` or of the result.
pub(super) const OF_TOKENS: Width = |tokens| tokens * SIZE as usize;
/// Elements per batch of the result of a gated activation.
pub(super) const OF_HALF: Width = |tokens| tokens * SIZE as usize / 2;
/// Elements of the weight.
pub(super) const WEIGHT: Width = |_| (SIZE * SIZE) as usize;

pub(super) fn linear(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [y, ..]) = ([t.rows, t.cols, SIZE], t.y);
    let (x, weight) = (t.x[0].view(&shape)?, t.x[1].view(&[SIZE, SIZE])?);
    oxiwarp::linear(device, x, weight, None, y.view_mut(&shape)?, stream)
}

pub(super) fn linear_activation(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [y, ..]) = ([t.rows, t.cols, SIZE], t.y);
    let (x, weight) = (t.x[0].view(&shape)?, t.x[1].view(&[SIZE, SIZE])?);
    let (y, f) = (y.view_mut(&shape)?, Activation::GeluTanh);
    oxiwarp::linear_activation(device, x, weight, None, y, f, Roundings::Exact, stream)
}

pub(super) fn linear_gated_activation(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [y, ..]) = ([t.rows, t.cols, SIZE], t.y);
    let (x, weight) = (t.x[0].view(&shape)?, t.x[1].view(&[SIZE, SIZE])?);
    let y = y.view_mut(&[t.rows, t.cols, SIZE / 2])?;
    let (activation, gate, roundings) = (Activation::Silu, Gate::First, Roundings::Exact);
    let params = GatedActivation { activation, gate, roundings };
    oxiwarp::linear_gated_activation(device, x, weight, None, y, params, stream)
}

pub(super) fn linear_gated_residual(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [y, ..]) = ([t.rows, t.cols, SIZE], t.y);
    let (x, weight) = (t.x[0].view(&shape)?, t.x[1].view(&[SIZE, SIZE])?);
    let (residual, y) = (t.x[2].view(&shape)?, y.view_mut(&shape)?);
    oxiwarp::linear_gated_residual(device, x, weight, None, residual, None, y, Roundings::Exact, stream)
}
