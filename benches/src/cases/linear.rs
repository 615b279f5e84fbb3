//! Benchmark calls of the matrix product `linear`. The weight has the size of FLUX.1's output projections. A
//! benchmark gives its tensor size as `rows` and `cols`. Here, `rows` is the batch size, and `cols` is the
//! number of tokens.
use oxiwarp::{Device, Result, Stream};

use super::{Operands, Width};

/// Number of rows and columns of the weight.
const SIZE: i64 = 3_072;

/// Elements per batch of `x` or of the result.
pub(super) const OF_TOKENS: Width = |tokens| tokens * SIZE as usize;
/// Elements of the weight.
pub(super) const WEIGHT: Width = |_| (SIZE * SIZE) as usize;

pub(super) fn linear(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [y, ..]) = ([t.rows, t.cols, SIZE], t.y);
    let (x, weight) = (t.x[0].view(&shape)?, t.x[1].view(&[SIZE, SIZE])?);
    oxiwarp::linear(device, x, weight, None, y.view_mut(&shape)?, stream)
}
