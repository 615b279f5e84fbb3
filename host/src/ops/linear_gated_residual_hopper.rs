//! The kernels of the op `linear_gated_residual` for Hopper.
use cuda_std::tensor_map::TensorMap;
use kernels_gpu::gemm::epilogue::gated_residual::GatedResidualParams;
use kernels_gpu::gemm::hopper::params::GemmParams;
use kernels_gpu::ops::linear_gated_residual_hopper::launch;

use crate::library::LaunchSite;
use crate::operands::matrix::Matrix;
use crate::operands::product::Product;
use crate::plan::product_hopper::{
    FewRows, T128X128_OPERAND, T128X192_OPERAND, T192X192_OPERAND, T256X128, TimedTile, launch_few_rows,
    launch_hopper, result_map,
};
use crate::{Device, Result, Stream};

/// A function that launches a kernel.
type GatedResidualHopperKernel = unsafe fn(
    LaunchSite,
    TensorMap,
    TensorMap,
    TensorMap,
    TensorMap,
    GemmParams,
    GatedResidualParams,
) -> Result<()>;

const KERNELS: [(TimedTile, GatedResidualHopperKernel); 4] = [
    (T128X192_OPERAND, launch::linear_gated_residual_hopper_128x192_smem),
    (T128X128_OPERAND, launch::linear_gated_residual_hopper_128x128_smem),
    (T192X192_OPERAND, launch::linear_gated_residual_hopper_192x192_smem),
    (T256X128, launch::linear_gated_residual_hopper_256x128_smem),
];

const FEW_ROWS: FewRows<GatedResidualHopperKernel> = FewRows {
    t64x16: launch::linear_gated_residual_hopper_64x16_smem,
    t64x16_half: launch::linear_gated_residual_hopper_64x16_half_smem,
    t64x32: launch::linear_gated_residual_hopper_64x32_smem,
    t64x32_half: launch::linear_gated_residual_hopper_64x32_half_smem,
    t64x64: launch::linear_gated_residual_hopper_64x64_smem,
};

/// Launches a kernel for few rows with the function [`launch_few_rows`] if one supports the call. Otherwise
/// launches another Hopper kernel with the function [`launch_hopper`]. `e` is the kernel argument of the
/// epilogue.
pub(super) fn linear_gated_residual_hopper(
    device: &Device,
    a: &Product,
    residual: &Matrix,
    e: GatedResidualParams,
    skip: &mut usize,
    stream: Stream,
) -> Result<bool> {
    let launch =
        |kernel: GatedResidualHopperKernel, site: LaunchSite, maps: [TensorMap; 3], params: GemmParams| {
            let ([x, w, y], residual) = (maps, result_map(device, residual)?);
            // SAFETY: the kernel accesses only the tensors that the tensor maps, `params` and `e` describe.
            // The caller has checked these tensors.
            unsafe { kernel(site, x, w, y, residual, params, e) }
        };
    Ok(launch_few_rows(device, a, &FEW_ROWS, skip, stream, launch)?
        || launch_hopper(device, a, &KERNELS, skip, stream, launch)?)
}
