//! The kernels of the op `linear_gated_activation` for Hopper.
use kernels_gpu::gemm::epilogue::gated_activation::GatedActivationParams;
use kernels_gpu::ops::linear_gated_activation_hopper::launch;

use crate::plan::product_hopper::{EpilogueKernel, T128X128, T128X256, T256X128, TimedTile};

pub(super) const KERNELS: [(TimedTile, EpilogueKernel<GatedActivationParams>); 3] = [
    (T128X128, launch::linear_gated_activation_hopper_128x128_smem),
    (T256X128, launch::linear_gated_activation_hopper_256x128_smem),
    (T128X256, launch::linear_gated_activation_hopper_128x256_smem),
];
