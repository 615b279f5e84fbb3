//! `y = (x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension.

use crate::device::launch::args;
use crate::operands::modulation::{Target, form};
use crate::operands::rows::{RowLayout, expect_disjoint};
use crate::plan::vec4_norm::{Access, NormKernels, NormLaunch, TileKernel, Vec4Launch};
use crate::{Affine, Device, Result, Stream, View, ViewMut};

const OP: &str = "layer_norm";
const KERNELS: NormKernels = NormKernels {
    special: &[
        TileKernel { name: "layer_norm_warp5", access: Access::WarpRegisters(5), form: None },
        TileKernel { name: "layer_norm_warp10", access: Access::WarpRegisters(10), form: None },
        TileKernel { name: "layer_norm_block6", access: Access::BlockRegisters(6), form: None },
        TileKernel { name: "layer_norm_block8", access: Access::BlockRegisters(8), form: None },
        TileKernel { name: "layer_norm_block10", access: Access::BlockRegisters(10), form: None },
    ],
    ..NormKernels::of(["layer_norm_any"; 2])
};

/// `y = (x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension, in f32, rounded once at the end.
///
/// `x` and `y` have one shape and dtype, any strides whose last is 1 and whose rows two strides reach; weight and bias are
/// `[columns]`, of their dtype or f32, or absent. With no rows nothing happens. For columns divisible by 4 the bits are
/// those of torch's CUDA kernel; a row's bits depend on nothing but the row and the parameters.
///
/// # Errors
/// Shapes, dtypes or strides that do not fit, a negative or NaN eps, a `y` that overlaps an input: nothing is
/// written. See [`Error`](crate::Error) for the rest.
pub fn layer_norm(
    device: &Device,
    x: View,
    affine: Affine,
    y: ViewMut,
    eps: f32,
    stream: Stream,
) -> Result<()> {
    let y = y.as_view();
    let mut layout = RowLayout::of(OP, device, [("x", &x), ("out", y)])?;
    let target = Target { op: OP, device, x: &x };
    let parameters = target.affine(&affine, &mut layout.vec4s)?;
    let weights = affine.named();
    expect_disjoint(OP, ("out", y), &[Some(("x", &x)), weights[0], weights[1]])?;
    let form = form([&parameters.weight, &parameters.bias].into_iter());
    let norm = NormLaunch { eps, form, round_each: false, staged_vec4: 1 };
    let launch = Vec4Launch::of(OP, device, &layout, norm, KERNELS)?;
    let (p, [x, y]) = (launch.params, layout.operands);
    // SAFETY: the views were checked to be what the kernel's arguments mean.
    unsafe { launch.launch(OP, device, &layout, stream, args![x, parameters, y, p]) }
}
