//! LayerNorm: `y = (x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension.

use crate::library::LaunchSite;
use crate::operands::mixed::needs_mixed;
use crate::operands::modulation::{Target, form};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::vec4_norm::{Access, NormKernels, NormLaunch, TileKernel, Vec4Launch};
use crate::{Affine, Device, Result, Stream, View, ViewMut};
use cuda_std::row::Rows;
use kernels_gpu::norm::affine::Affine as AffineArg;
use kernels_gpu::norm::params::NormParams;
use kernels_gpu::ops::layer_norm::launch;

const OP: &str = "layer_norm";
/// A function that launches a kernel of this op.
type LayerNormKernel = unsafe fn(LaunchSite, Rows, AffineArg, Rows, NormParams) -> Result<()>;
const KERNELS: NormKernels<LayerNormKernel> = NormKernels {
    special: &[
        TileKernel { kernel: launch::layer_norm_warp5, access: Access::WarpRegisters(5), form: None },
        TileKernel { kernel: launch::layer_norm_warp10, access: Access::WarpRegisters(10), form: None },
        TileKernel { kernel: launch::layer_norm_block6, access: Access::BlockRegisters(6), form: None },
        TileKernel { kernel: launch::layer_norm_block8, access: Access::BlockRegisters(8), form: None },
        TileKernel { kernel: launch::layer_norm_block10, access: Access::BlockRegisters(10), form: None },
    ],
    ..NormKernels::one(launch::layer_norm_any)
};

/// The kernel for a weight and a bias of any dtypes.
const MIXED: NormKernels<LayerNormKernel> = NormKernels::one(launch::layer_norm_mixed_any);

/// Computes `y = (x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension, the formula of
/// `torch.nn.LayerNorm`. The result is computed in f32 and rounded once at the end.
///
/// `x` and `y` are f32, f16 or bf16 and have the same shape and dtype. `x` and `y` must be viewable as `[n,
/// m, columns]` without a copy, with the same `n` and `m`. Weight and bias are optional. They have the shape
/// `[columns]`, in any of the three dtypes. If there are no rows, the call does nothing.
///
/// If the number of columns is divisible by 4, the result is bitwise equal to the result of torch's CUDA
/// kernel. The bits of a result row depend only on the row and the parameters.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported. The same applies if
/// `eps` is negative or not finite, or if `y` overlaps an input. [`Error`](crate::Error) lists further
/// errors, such as those of the GPU driver.
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
    let target = Target { op: OP, device, x: &x, mixed: true };
    let parameters = target.affine(&affine, &mut layout.vec4s)?;
    let weights = affine.named();
    expect_disjoint(OP, ("out", y), &[Some(("x", &x)), weights[0], weights[1]])?;
    let form = form([&parameters.weight, &parameters.bias].into_iter());
    let mixed = needs_mixed([&parameters.weight, &parameters.bias]);
    let parameters = if mixed { target.mixed_affine(parameters) } else { parameters };
    let norm = NormLaunch { eps, form, round_each: false, staged_vec4: 1 };
    let launch = Vec4Launch::of(OP, device, &layout, norm, if mixed { MIXED } else { KERNELS })?;
    let (p, [x, y]) = (launch.params, layout.operands);
    launch.launch(OP, device, &layout, stream, |kernel, site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, x, parameters, y, p) }
    })
}
