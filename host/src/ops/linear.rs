//! The matrix product `y = x wᵀ + bias`.
use kernels_gpu::gemm::mma::params::{LinearParams, T64X64, T128X128};
use kernels_gpu::ops::linear::launch;

use super::linear_hopper::linear_hopper;
use crate::launch::launch_override;
use crate::library::LaunchSite;
use crate::operands::product::ProductViews;
use crate::plan::product::{PortableKernels, expect_product_kernels};
use crate::{Device, Result, Stream, View, ViewMut};

const OP: &str = "linear";

/// A function that launches a kernel.
type LinearKernel = unsafe fn(LaunchSite, LinearParams) -> Result<()>;

const KERNELS: PortableKernels<LinearKernel> = PortableKernels {
    large: (launch::linear_128x128_smem, T128X128),
    small: (launch::linear_64x64_smem, T64X64),
    general: launch::linear_64x64_general_smem,
};

/// Computes `y = x wᵀ + bias`, the formula of `torch.nn.functional.linear`.
///
/// `x` has the shape `[..., K]`, `weight` `[N, K]`, `bias` `[N]`, and `y` `[..., N]`. All have the same
/// dtype, f16 or bf16. `K` and `N` are multiples of 8. The last dimension of each tensor is contiguous. The
/// distance between consecutive rows must be the same for all rows of a tensor. Calls are faster if all rows
/// are aligned to 16 bytes.
///
/// For each element of `y`, the products are added in f32, in ascending order of K. The bias is also added in
/// f32, and the sum is rounded once.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if `y` overlaps
/// another argument. [`Error`](crate::Error) lists further errors, such as those of the GPU driver.
pub fn linear(
    device: &Device,
    x: View,
    weight: View,
    bias: Option<View>,
    y: ViewMut,
    stream: Stream,
) -> Result<()> {
    let views = ProductViews { x: &x, weight: &weight, bias: bias.as_ref(), y: y.as_view() };
    let product = views.check(OP, device, false)?;
    if product.is_empty() {
        return Ok(());
    }
    expect_product_kernels(OP, device)?;
    let mut skip = launch_override(device).skip;
    if linear_hopper(device, &product, &mut skip, stream)? {
        return Ok(());
    }
    KERNELS.launch(device, &product, skip, stream, |kernel, site, params| {
        // SAFETY: the kernel accesses only the tensors that its parameters point to. The function `check` has
        // checked the shape, dtype, strides and device of each of these tensors. The plan launches a kernel
        // only if it supports the alignment of the tensors.
        unsafe { kernel(site, params) }
    })
}
