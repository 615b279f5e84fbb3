//! oxiwarp's kernels, one file per op, and nothing else.
//!
//! `cuda_builder` compiles this crate to PTX; compiled for the host it gives [`kernels`] to the CPU executor.
//! Arguments that are more than a number are `repr(C)` types, which the host crate fills in.
// Without a kernel (on sm_75 there are none on tensor cores) nothing uses the feature.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx), allow(unused_features))]

pub mod activations;
pub mod affine;
mod angles;
#[cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod attention;
mod block_sums;
mod brief;
mod chains;
pub mod column_sums;
pub mod elementwise;
pub mod exp_sum;
pub mod gated;
mod group;
mod halves_norm;
mod head_halves;
pub mod head_lanes;
pub mod head_norm;
mod head_rms_norm;
mod head_rows;
pub mod heads;
mod held_passes;
pub mod held_rows;
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
pub mod hopper;
mod modulated;
mod moments;
pub mod norm;
pub mod norm_backward;
mod octet;
pub mod operand;
pub mod ops;
pub mod paired_heads;
pub mod params;
mod part_moments;
pub mod passes;
pub mod rotary;
mod share;
mod side;
mod source;
pub mod target;
mod team_moments;
mod team_row;
mod turned_rows;
pub mod weight;
mod welford;

/// Every kernel of this crate, for the CPU executor.
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernels() -> impl Iterator<Item = &'static cuda_std::cpu::Kernel> {
    ops::KERNELS.iter().copied().flatten().copied().flatten()
}
