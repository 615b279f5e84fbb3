//! GPU kernels of oxiwarp: one file in [`ops`] per operator, and the modules that the operators share.
//!
//! `cuda_builder` compiles this crate to PTX. A build for the host exports [`kernels`], the table of kernels
//! for the CPU executor. Kernel arguments other than numbers and pointers are `repr(C)` structs, which the
//! host crate fills in.
// A unit without kernels does not use the feature. The attention units are empty on sm_75.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx), allow(unused_features))]

#[cfg(any(target_feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod attention;
pub mod elementwise;
pub mod heads;
pub mod layout;
pub mod norm;
pub mod norm_backward;
pub mod ops;
pub mod rms;
pub mod softmax;

/// Returns every kernel of this crate, for the CPU executor.
#[cfg(not(target_arch = "nvptx64"))]
pub fn kernels() -> impl Iterator<Item = &'static cuda_std::cpu::Kernel> {
    ops::KERNELS.iter().copied().flatten().copied().flatten()
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    use cuda_std::cpu::Overlap;

    /// All other kernels overlap with the previous and with the next launch: see "Overlapping launches" in
    /// `docs/internals/launch-configuration.md`.
    #[test]
    fn kernels_that_do_not_overlap_with_both_launches() {
        const PLAIN: &[&str] =
            &["activation_any", "activation_backward_any", "activation_backward_block1", "activation_block1"];
        const BEFORE: &[&str] = &[
            "add_rms_norm_block2",
            "layer_norm_backward_any",
            "layer_norm_backward_rows2_block2",
            "layer_norm_backward_block3",
            "layer_norm_backward_block4",
            "layer_norm_backward_sums_any",
            "layer_norm_warp10",
            "rms_norm_backward_any",
            "rms_norm_backward_block4",
            "rms_norm_backward_sums_any",
        ];
        for (overlap, expected) in [(Overlap::Plain, PLAIN), (Overlap::Before, BEFORE)] {
            let mut found: Vec<_> = super::kernels()
                .filter(|kernel| kernel.overlap == overlap)
                .map(|kernel| kernel.name)
                .collect();
            let mut names: Vec<_> = expected
                .iter()
                .flat_map(|op| ["f32", "f16", "bf16"].map(|elem| format!("{op}_{elem}")))
                .collect();
            found.sort_unstable();
            names.sort_unstable();
            assert_eq!(found, names, "{overlap:?}");
        }
    }
}
