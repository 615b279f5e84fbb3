//! A matrix product and an activation function: `y = f(x wᵀ + bias)`.
use kernels_gpu::elementwise::activations::ActivationParams;
use kernels_gpu::gemm::mma::params::{LinearParams, T64X64, T128X128};
use kernels_gpu::ops::linear_activation::launch;

use super::activation::{Activation, Roundings};
use super::linear_activation_hopper::{FEW_ROWS, KERNELS as HOPPER};
use crate::launch::launch_override;
use crate::library::LaunchSite;
use crate::operands::product::ProductViews;
use crate::plan::product::{PortableKernels, expect_product_kernels};
use crate::plan::product_hopper::launch_with_epilogue;
use crate::{Device, Dtype, Error, Result, Stream, View, ViewMut};

const OP: &str = "linear_activation";

/// A function that launches a kernel.
type LinearActivationKernel = unsafe fn(LaunchSite, LinearParams, ActivationParams) -> Result<()>;

const KERNELS: PortableKernels<LinearActivationKernel> = PortableKernels {
    large: (launch::linear_activation_128x128_smem, T128X128),
    small: (launch::linear_activation_64x64_smem, T64X64),
    general: launch::linear_activation_64x64_general_smem,
};

/// Computes `y = f(x wᵀ + bias)`, where `f` is an [`Activation`] except `Sigmoid` and `Relu2`.
///
/// The tensors have the shapes, dtypes and strides of [`linear`](crate::linear). With [`Roundings::Exact`],
/// the result is bitwise equal to the result of [`linear`](crate::linear) followed by
/// [`activation`](crate::activation). With [`Roundings::Once`], only the result is rounded.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if `y` overlaps
/// another argument. [`Error`](crate::Error) lists further errors, such as those of the GPU driver.
pub fn linear_activation(
    device: &Device,
    x: View,
    weight: View,
    bias: Option<View>,
    y: ViewMut,
    f: Activation,
    roundings: Roundings,
    stream: Stream,
) -> Result<()> {
    let views = ProductViews { x: &x, weight: &weight, bias: bias.as_ref(), y: y.as_view() };
    let product = views.check(OP, device, false)?;
    let e = activation_params(OP, f, product.y.dtype, roundings)?;
    if product.is_empty() {
        return Ok(());
    }
    expect_product_kernels(OP, device)?;
    let mut skip = launch_override(device).skip;
    // SAFETY: `e` describes no tensor.
    if unsafe { launch_with_epilogue(device, &product, Some(&FEW_ROWS), &HOPPER, e, &mut skip, stream) }? {
        return Ok(());
    }
    KERNELS.launch(device, &product, skip, stream, |kernel, site, params| {
        // SAFETY: the kernel accesses only the tensors that its parameters point to. This function has
        // checked the shape, dtype, strides and device of each of these tensors. The plan launches a kernel
        // only if it supports the alignment of the tensors.
        unsafe { kernel(site, params, e) }
    })
}

/// Returns the kernel argument of an activation function for elements of `dtype`.
pub(super) fn activation_params(
    op: &'static str,
    f: Activation,
    dtype: Dtype,
    roundings: Roundings,
) -> Result<ActivationParams> {
    if matches!(f, Activation::Sigmoid | Activation::Relu2) {
        let why = format!("the kernels do not compute {f:?}; call `linear` and then `activation`");
        return Err(Error::Unsupported { op, why });
    }
    let exact = u32::from(roundings == Roundings::Exact);
    Ok(ActivationParams { function: f.function(op, dtype, roundings)?, exact })
}
