//! `y = exp(x - max) / sum(exp(x - max))` over the last dimension, or its logarithm.
use kernels_gpu::exp_sum::Params;

use crate::ladder::{Ladder, ONE_OPERAND, Rung, SHORT_ROWS};
use crate::launch::args;
use crate::rows::{RowLayout, expect_disjoint, launch_rows};
use crate::{Device, Result, Stream, View, ViewMut};

const OP: &str = "softmax";

/// Rows that nothing holds are read twice, by blocks of 1024 threads: one of them a multiprocessor, so that the rows in
/// flight are few and the second read finds most of them in L2. One block of 1024 threads that holds a row leaves the
/// memory idle while it folds: 81 % of copy bandwidth on an H200 at 65,536 columns, where eight of 128 have 94 %.
const LADDER: Ladder = Ladder { short: SHORT_ROWS, held: ONE_OPERAND, blocks_up_to: 6_144, reread: 1_024 };
const KERNELS: &[&str] = &[
    OP,
    "softmax_hold2",
    "softmax_hold4",
    "softmax_hold8",
    "softmax_cluster_hold8",
    "softmax_cluster_hold7",
];

/// `y = exp(x - max) / sum(exp(x - max))` over the last dimension, or with `log` its logarithm,
/// `x - max - ln(sum(exp(x - max)))`: in f32, rounded once.
///
/// `x` and `y` have one shape and dtype, any strides whose last is 1 and whose rows two strides reach. A row of -inf
/// alone, or with a NaN or +inf, is NaN; what is below 2^-126 is 0. With no rows nothing happens. A row's bits depend
/// on its length and on whether both operands, strides included, are aligned to 16 bytes, not on the other rows.
///
/// # Errors
/// Shapes, dtypes or strides that do not fit, a `y` that overlaps `x`: nothing is written. See
/// [`Error`](crate::Error) for the rest.
pub fn softmax(device: &Device, x: View, y: ViewMut, log: bool, stream: Stream) -> Result<()> {
    on_rung(device, x, y, log, stream, None)
}

/// [`softmax`] with a launch configuration of the caller's choice: what the ladders are tuned with.
///
/// # Errors
/// As [`softmax`]; a rung that cannot hold the row.
#[doc(hidden)]
pub fn on_rung(
    device: &Device,
    x: View,
    y: ViewMut,
    log: bool,
    stream: Stream,
    rung: Option<Rung>,
) -> Result<()> {
    let y = y.as_view();
    let layout = RowLayout::of(OP, device, [("x", &x), ("out", y)])?;
    expect_disjoint(OP, ("out", y), &[Some(("x", &x))])?;
    let rung = match rung {
        Some(rung) => rung.expect_holds(OP, device.arch(), KERNELS, &layout).map(|()| rung)?,
        None => LADDER.pick(device.arch(), &layout),
    };
    let (p, [x, y]) = (kernel_params(&layout, log), layout.operands);
    // SAFETY: the views were checked to be what the kernel's arguments mean.
    unsafe { launch_rows(OP, device, rung.kernel(KERNELS), rung, &layout, stream, args![x, y, p]) }
}

pub(super) fn kernel_params<const N: usize>(layout: &RowLayout<N>, log: bool) -> Params {
    Params {
        rows: layout.rows,
        inner: layout.inner,
        cols: layout.cols,
        vector: u32::from(layout.vector),
        log: u32::from(log),
    }
}
