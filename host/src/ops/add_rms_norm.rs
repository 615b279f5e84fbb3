//! `sum = x + residual`, `y = rms_norm(sum)`: both results, one pass.
use super::rms_norm::{RmsNorm, check, kernel_params};
use crate::ladder::{Arch, Rung, pick, rung};
use crate::launch::args;
use crate::rows::{RowLayout, expect_disjoint, launch_rows};
use crate::{Device, Result, Stream, View, ViewMut};

const OP: &str = "add_rms_norm";

/// As `rms_norm`'s; two rows are loaded here, so at the same packs a thread twice the bytes are in flight.
const HELD: &[Rung] = &[
    rung(2, "add_rms_norm_hold2", 1, 64),
    rung(4, "add_rms_norm_hold2", 2, 64),
    rung(8, "add_rms_norm_hold2", 4, 64),
    rung(16, "add_rms_norm_hold2", 8, 64),
    rung(32, "add_rms_norm_hold2", 16, 64),
    rung(64, "add_rms_norm_hold2", 32, 64),
    rung(128, "add_rms_norm_hold4", 32, 64),
    rung(256, "add_rms_norm_hold2", 128, 128),
    rung(384, "add_rms_norm_hold4", 96, 96),
    rung(640, "add_rms_norm_hold4", 160, 160),
    rung(768, "add_rms_norm_hold4", 192, 192),
    rung(1_024, "add_rms_norm_hold4", 256, 256),
    rung(1_536, "add_rms_norm_hold4", 384, 384),
    rung(2_048, "add_rms_norm_hold4", 512, 512),
    rung(3_072, "add_rms_norm_hold4", 768, 768),
    rung(4_096, "add_rms_norm_hold4", 1_024, 1_024),
    rung(u32::MAX, "add_rms_norm", 256, 256),
];

fn ladder(arch: Option<Arch>) -> &'static [Rung] {
    match arch {
        None | Some(Arch::Sm75 | Arch::Sm80 | Arch::Sm90) => HELD,
    }
}

/// `sum = x + residual`, rounded to the dtype; `y = rms_norm(sum)`, as [`rms_norm`](crate::rms_norm).
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
    let mut layout = RowLayout::of(OP, [("x", &x), ("residual", &residual), ("out", y), ("sum", sum)])?;
    let weight_arg = check(OP, &x, weight.as_ref(), params, &mut layout)?;
    let inputs =
        [Some(("x", &x)), Some(("residual", &residual)), weight.as_ref().map(|weight| ("weight", weight))];
    expect_disjoint(OP, ("out", y), &inputs)?;
    expect_disjoint(OP, ("sum", sum), &inputs)?;
    expect_disjoint(OP, ("out", y), &[Some(("sum", sum))])?;
    let plan = pick(OP, ladder(device.arch()), &layout);
    let (p, [x, residual, y, sum]) = (kernel_params(&layout, params), layout.operands);
    // SAFETY: the views were checked to be what the kernel's arguments mean.
    unsafe { launch_rows(OP, device, plan, &layout, stream, args![x, residual, weight_arg, y, sum, p]) }
}
