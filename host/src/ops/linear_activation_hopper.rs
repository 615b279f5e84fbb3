//! The kernels of the op `linear_activation` for Hopper.
use kernels_gpu::elementwise::activations::ActivationParams;
use kernels_gpu::ops::linear_activation_hopper::launch;

use crate::plan::product_hopper::{
    EpilogueKernel, FewRows, T128X128, T128X192, T192X192, T256X128, TimedTile,
};

pub(super) const KERNELS: [(TimedTile, EpilogueKernel<ActivationParams>); 4] = [
    (T128X192, launch::linear_activation_hopper_128x192_smem),
    (T128X128, launch::linear_activation_hopper_128x128_smem),
    (T192X192, launch::linear_activation_hopper_192x192_smem),
    (T256X128, launch::linear_activation_hopper_256x128_smem),
];

pub(super) const FEW_ROWS: FewRows<EpilogueKernel<ActivationParams>> = FewRows {
    t64x16: launch::linear_activation_hopper_64x16_smem,
    t64x16_half: launch::linear_activation_hopper_64x16_half_smem,
    t64x32: launch::linear_activation_hopper_64x32_smem,
    t64x32_half: launch::linear_activation_hopper_64x32_half_smem,
    t64x64: launch::linear_activation_hopper_64x64_smem,
};
