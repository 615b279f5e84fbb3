//! Checks for each kernel whether its launches may overlap with the previous and with the next launch
//! (programmatic dependent launch, PDL).
use cuda_std::launch::Overlap;

/// The kernels whose launches do not overlap in both directions. Every launch may start before the previous
/// launch ends. After a kernel in `PLAIN` or `BEFORE`, the next launch starts only when this kernel has
/// ended. After all other kernels, the next launch may start earlier. The section "Overlapping launches" of
/// `docs/internals/launch-configuration.md` explains the reasons.
#[test]
fn kernels_that_do_not_overlap_with_both_launches() {
    const PLAIN: &[&str] = &[
        "activation_any",
        "activation_block1",
        "activation_relu2_any",
        "activation_relu2_block1",
        "activation_sigmoid_any",
        "activation_sigmoid_block1",
        "activation_backward_any",
        "activation_backward_block1",
        "activation_backward_relu2_any",
        "activation_backward_relu2_block1",
        "activation_backward_sigmoid_any",
        "activation_backward_sigmoid_block1",
    ];
    const BEFORE: &[&str] = &[
        "add_rms_norm_block2",
        "gated_residual_backward_per_group_any",
        "gated_residual_backward_per_group_block1",
        "gated_residual_backward_sums_any",
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
        let mut found: Vec<_> = kernels_gpu::kernels()
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
