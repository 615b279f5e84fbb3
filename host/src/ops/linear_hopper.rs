//! The kernels of the op `linear` for Hopper.
use cuda_std::tensor_map::TensorMap;
use kernels_gpu::gemm::hopper::params::{
    GemmParams, GemmTile, T64X16, T64X16_HALF, T64X32, T64X32_HALF, T64X64,
};
use kernels_gpu::ops::linear_hopper::launch;

use crate::library::LaunchSite;
use crate::operands::product::Product;
use crate::plan::product_hopper::{
    T128X128, T128X192, T128X256, T192X192, T256X128, T256X192, TimedTile, launch_few_rows, launch_hopper,
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

/// The kernels for results with few rows. The first list is for results with up to [`NARROW`] columns, the
/// second list for wider results.
const FEW_ROWS: [[(GemmTile, LinearHopperKernel); 3]; 2] = [
    [
        (T64X16, launch::linear_hopper_64x16_smem),
        (T64X16_HALF, launch::linear_hopper_64x16_half_smem),
        (T64X32_HALF, launch::linear_hopper_64x32_half_smem),
    ],
    [
        (T64X16, launch::linear_hopper_64x16_smem),
        (T64X32, launch::linear_hopper_64x32_smem),
        (T64X64, launch::linear_hopper_64x64_smem),
    ],
];
/// Maximum number of columns for which two blocks of a cluster share the rows of `w`, so that more blocks
/// read `w`. With more columns, there is a tile of 64 columns for each SM even without this sharing.
const NARROW: u32 = 8192;

/// Launches a kernel for few rows with the function [`launch_few_rows`] if one supports the call. Otherwise
/// launches another Hopper kernel with the function [`launch_hopper`].
pub(super) fn linear_hopper(device: &Device, a: &Product, skip: &mut usize, stream: Stream) -> Result<bool> {
    let launch =
        |kernel: LinearHopperKernel, site: LaunchSite, [x, w, y]: [TensorMap; 3], params: GemmParams| {
            // SAFETY: the kernel accesses only the tensors that the tensor maps and `params` describe. The
            // caller has checked these tensors.
            unsafe { kernel(site, x, w, y, params) }
        };
    let few_rows = &FEW_ROWS[usize::from(a.y.columns > NARROW)];
    Ok(launch_few_rows(device, a, few_rows, skip, stream, launch)?
        || launch_hopper(device, a, &KERNELS, skip, stream, launch)?)
}
