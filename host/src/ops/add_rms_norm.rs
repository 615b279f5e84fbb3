//! `sum = x + residual`, `y = rms_norm(sum)`: both results, one pass.
use super::rms_norm::{RmsNorm, check, kernel_params};
use crate::ladder::{LongRows, rung};
use crate::launch::args;
use crate::rows::{RowLayout, expect_disjoint, launch_rows};
use crate::{Device, Result, Stream, View, ViewMut};

const OP: &str = "add_rms_norm";

/// Two rows are loaded here, so 4 packs a thread are the bytes in flight that 8 are in `rms_norm`. Blocks of up to 512
/// threads hold no more than the ladder of short rows has.
const LONG_ROWS: LongRows = LongRows {
    sm75: &[rung(u32::MAX, 0, 256, 256)],
    sm80: &[rung(3_072, 4, 768, 768), rung(4_096, 4, 1_024, 1_024), rung(u32::MAX, 0, 256, 256)],
};

/// The kernel whose threads hold so many packs.
fn kernel(held: u32) -> &'static str {
    match held {
        2 => "add_rms_norm_hold2",
        4 => "add_rms_norm_hold4",
        _ => OP,
    }
}

/// `sum = x + residual`, rounded to the dtype; `y = rms_norm(sum)`, as [`rms_norm`](crate::rms_norm).
///
/// Rows of up to 32 KiB whose operands are all aligned to 16 bytes get the bits of the two ops one after the other; in
/// longer ones the order of the sum differs.
///
/// `x`, `residual`, `y` and `sum` have one shape and dtype; `weight` is `[columns]`, of their dtype or f32.
///
/// # Errors
/// As [`rms_norm`](crate::rms_norm); also when `y` or `sum` overlaps any other argument.
pub fn add_rms_norm(
    device: &Device,
    x: View,
    residual: View,
    weight: Option<View>,
    y: ViewMut,
    sum: ViewMut,
    params: RmsNorm,
    stream: Stream,
) -> Result<()> {
    let (y, sum) = (y.as_view(), sum.as_view());
    let mut layout =
        RowLayout::of(OP, device, [("x", &x), ("residual", &residual), ("out", y), ("sum", sum)])?;
    let weight_arg = check(OP, device, &x, weight.as_ref(), params, &mut layout)?;
    let inputs =
        [Some(("x", &x)), Some(("residual", &residual)), weight.as_ref().map(|weight| ("weight", weight))];
    expect_disjoint(OP, ("out", y), &inputs)?;
    expect_disjoint(OP, ("sum", sum), &inputs)?;
    expect_disjoint(OP, ("out", y), &[Some(("sum", sum))])?;
    let rung = LONG_ROWS.pick(device.arch(), &layout);
    let (p, [x, residual, y, sum]) = (kernel_params(&layout, params), layout.operands);
    // SAFETY: the views were checked to be what the kernel's arguments mean.
    unsafe {
        launch_rows(
            OP,
            device,
            kernel(rung.held),
            rung,
            &layout,
            stream,
            args![x, residual, weight_arg, y, sum, p],
        )
    }
}
