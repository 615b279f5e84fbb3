//! The kernels of the op `linear_gated_activation` for Hopper.
use cuda_std::tensor_map::TensorMap;
use kernels_gpu::gemm::epilogue::gated_activation::GatedActivationParams;
use kernels_gpu::gemm::hopper::params::GemmParams;
use kernels_gpu::ops::linear_gated_activation_hopper::launch;

use crate::library::LaunchSite;
use crate::operands::product::Product;
use crate::plan::product_hopper::{T128X128, T128X256, T256X128, TimedTile, launch_hopper};
use crate::{Device, Result, Stream};

/// A function that launches a kernel.
type GatedActivationHopperKernel =
    unsafe fn(LaunchSite, TensorMap, TensorMap, TensorMap, GemmParams, GatedActivationParams) -> Result<()>;

const KERNELS: [(TimedTile, GatedActivationHopperKernel); 3] = [
    (T128X128, launch::linear_gated_activation_hopper_128x128_smem),
    (T256X128, launch::linear_gated_activation_hopper_256x128_smem),
    (T128X256, launch::linear_gated_activation_hopper_128x256_smem),
];

/// Launches a Hopper kernel with the function [`launch_hopper`]. `e` is the kernel argument of the epilogue.
pub(super) fn linear_gated_activation_hopper(
    device: &Device,
    a: &Product,
    e: GatedActivationParams,
    skip: &mut usize,
    stream: Stream,
) -> Result<bool> {
    launch_hopper(device, a, &KERNELS, skip, stream, |kernel, site, [x, w, y], params| {
        // SAFETY: the kernel accesses only the tensors that the tensor maps, `params` and `e` describe. The
        // caller has checked these tensors.
        unsafe { kernel(site, x, w, y, params, e) }
    })
}
