//! A matrix product and a gated activation: `y = f(gate) * up`. `gate` and `up` are the two halves of the
//! columns of `x wᵀ + bias`.
use kernels_gpu::gemm::epilogue::gated_activation::GatedActivationParams;
use kernels_gpu::gemm::mma::params::{LinearParams, T64X128, T128X128};
use kernels_gpu::ops::linear_gated_activation::launch;

use super::gated_activation::{Gate, GatedActivation};
use super::linear_activation::activation_params;
use super::linear_gated_activation_hopper::KERNELS as HOPPER;
use crate::launch::launch_override;
use crate::library::LaunchSite;
use crate::operands::product::ProductViews;
use crate::plan::product::{PortableKernels, expect_product_kernels};
use crate::plan::product_hopper::launch_with_epilogue;
use crate::{Device, Result, Stream, View, ViewMut};

const OP: &str = "linear_gated_activation";

/// A function that launches a kernel.
type LinearGatedActivationKernel = unsafe fn(LaunchSite, LinearParams, GatedActivationParams) -> Result<()>;

const KERNELS: PortableKernels<LinearGatedActivationKernel> = PortableKernels {
    large: (launch::linear_gated_activation_128x128_smem, T128X128),
    small: (launch::linear_gated_activation_64x128_smem, T64X128),
    general: launch::linear_gated_activation_64x128_general_smem,
};

/// Computes `y = first * f(second)`, or `y = f(first) * second` if `params.gate` is [`Gate::First`]. `first`
/// and `second` are the two halves of the columns of `x wᵀ + bias`, and `f` is an
/// [`Activation`](crate::Activation) except `Sigmoid` and `Relu2`.
///
/// `x` has the shape `[..., K]`, `weight` `[2 * H, K]`, `bias` `[2 * H]`, and `y` `[..., H]`. `H` is a
/// multiple of 8. In all other respects, the tensors are those of [`linear`](crate::linear). With
/// [`Roundings::Exact`](crate::Roundings), the result is bitwise equal to the result of
/// [`linear`](crate::linear) followed by [`gated_activation`](crate::gated_activation). With
/// `Roundings::Once`, only the result is rounded.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if `y` overlaps
/// another argument. [`Error`](crate::Error) lists further errors, such as those of the GPU driver.
pub fn linear_gated_activation(
    device: &Device,
    x: View,
    weight: View,
    bias: Option<View>,
    y: ViewMut,
    params: GatedActivation,
    stream: Stream,
) -> Result<()> {
    let views = ProductViews { x: &x, weight: &weight, bias: bias.as_ref(), y: y.as_view() };
    let mut product = views.check(OP, device, true)?;
    let activation = activation_params(OP, params.activation, product.y.dtype, params.roundings)?;
    if product.is_empty() {
        return Ok(());
    }
    expect_product_kernels(OP, device)?;
    product.starts = match params.gate {
        Gate::First => [0, product.y.columns],
        Gate::Second => [product.y.columns, 0],
    };
    let e = GatedActivationParams { activation, starts: product.starts };
    let mut skip = launch_override(device).skip;
    // SAFETY: `e` describes no tensor.
    if unsafe { launch_with_epilogue(device, &product, None, &HOPPER, e, &mut skip, stream) }? {
        return Ok(());
    }
    KERNELS.launch(device, &product, skip, stream, |kernel, site, params| {
        // SAFETY: the kernel accesses only the tensors that its parameters point to. This function has
        // checked the shape, dtype, strides and device of each of these tensors. The plan launches a kernel
        // only if it supports the alignment of the tensors.
        unsafe { kernel(site, params, e) }
    })
}
