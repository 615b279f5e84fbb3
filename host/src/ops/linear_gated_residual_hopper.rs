//! The kernels of the op `linear_gated_residual` for Hopper.
use cuda_std::tensor_map::TensorMap;
use kernels_gpu::gemm::epilogue::gated_residual::GatedResidualParams;
use kernels_gpu::gemm::hopper::params::GemmParams;
use kernels_gpu::ops::linear_gated_residual_hopper::launch;

use crate::library::LaunchSite;
use crate::operands::matrix::Matrix;
use crate::operands::product::Product;
use crate::plan::product_hopper::{
    T128X128_OPERAND, T128X192_OPERAND, T192X192_OPERAND, T256X128_OPERAND, TimedTile, launch_hopper,
    result_map,
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
    (T256X128_OPERAND, launch::linear_gated_residual_hopper_256x128_smem),
];

/// Launches a Hopper kernel with the function [`launch_hopper`]. `e` is the kernel argument of the epilogue.
pub(super) fn linear_gated_residual_hopper(
    device: &Device,
    a: &Product,
    residual: &Matrix,
    e: GatedResidualParams,
    skip: &mut usize,
    stream: Stream,
) -> Result<bool> {
    launch_hopper(device, a, &KERNELS, skip, stream, |kernel, site, [x, w, y], params| {
        let residual = result_map(device, residual)?;
        // SAFETY: the kernel accesses only the tensors that the tensor maps, `params` and `e` describe. The
        // caller has checked these tensors.
        unsafe { kernel(site, x, w, y, residual, params, e) }
    })
}
