//! The kernels of the op `linear` for Hopper.
use cuda_std::tensor_map::TensorMap;
use kernels_gpu::gemm::hopper::params::GemmParams;
use kernels_gpu::ops::linear_hopper::launch;

use crate::library::LaunchSite;
use crate::operands::product::Product;
use crate::plan::product_hopper::{
    FewRows, T128X128, T128X192, T128X256, T192X192, T256X128, T256X192, TimedTile, launch_few_rows,
    launch_hopper,
};
use crate::{Device, Result, Stream};

/// A function that launches a kernel.
type LinearHopperKernel = unsafe fn(LaunchSite, TensorMap, TensorMap, TensorMap, GemmParams) -> Result<()>;

const KERNELS: [(TimedTile, LinearHopperKernel); 6] = [
    (T128X192, launch::linear_hopper_128x192_smem),
    (T128X128, launch::linear_hopper_128x128_smem),
    (T192X192, launch::linear_hopper_192x192_smem),
    (T256X128, launch::linear_hopper_256x128_smem),
    (T128X256, launch::linear_hopper_128x256_smem),
    (T256X192, launch::linear_hopper_256x192_smem),
];

const FEW_ROWS: FewRows<LinearHopperKernel> = FewRows {
    t64x16: launch::linear_hopper_64x16_smem,
    t64x16_half: launch::linear_hopper_64x16_half_smem,
    t64x32: launch::linear_hopper_64x32_smem,
    t64x32_half: launch::linear_hopper_64x32_half_smem,
    t64x64: launch::linear_hopper_64x64_smem,
};

/// Launches a kernel for few rows with the function [`launch_few_rows`] if one supports the call. Otherwise
/// launches another Hopper kernel with the function [`launch_hopper`].
pub(super) fn linear_hopper(device: &Device, a: &Product, skip: &mut usize, stream: Stream) -> Result<bool> {
    let launch =
        |kernel: LinearHopperKernel, site: LaunchSite, [x, w, y]: [TensorMap; 3], params: GemmParams| {
            // SAFETY: the kernel accesses only the tensors that the tensor maps and `params` describe. The
            // caller has checked these tensors.
            unsafe { kernel(site, x, w, y, params) }
        };
    Ok(launch_few_rows(device, a, &FEW_ROWS, skip, stream, launch)?
        || launch_hopper(device, a, &KERNELS, skip, stream, launch)?)
}
