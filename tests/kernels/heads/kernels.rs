//! Compares the specialised kernels, for the head shapes of common models, with the general kernels, which
//! support every shape. Both must give the same bits. For unaligned tensors, the op must run a general
//! kernel. The tests check the recorded launches to find out which kernel ran.
use half::{bf16, f16};
use oxiwarp::{Device, Element, LaunchOverride, Overridable as _, QkNorm, QkNormRope, Stream, qk_norm_rope};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::tensor::random;

use super::qk_norm_rope::HeadsOperand;
use crate::support::heads::{Kind, Layout, Rotation, Tables, Tensor};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("heads_kernels::f32_do_not_depend_on_alignment", alignment::<f32>),
    ("heads_kernels::f16_do_not_depend_on_alignment", alignment::<f16>),
    ("heads_kernels::bf16_do_not_depend_on_alignment", alignment::<bf16>),
    ("heads_kernels::a_warp_has_several_batches", several_batches),
];

/// Runs the op twice on the same values. The tensor of the first call is aligned, and the op must run the
/// kernel `kernel`. The tensor of the second call is unaligned, because it starts at the second element of a
/// buffer. The op must run another kernel, with the same result bits.
fn check<T: Element>(
    device: &Device,
    kernel: &str,
    norm: QkNorm,
    sizes: [usize; 4],
    across_heads: bool,
    rotation: Option<Rotation>,
    layout: Layout,
) {
    let (rng, odd) = (&mut random(seed()), Layout::At { offset: 1, gap: 0 });
    case!("{norm:?}, {sizes:?}, across: {across_heads}, {rotation:?}, {layout:?}");
    let cols = if across_heads { sizes[2] * sizes[3] } else { sizes[3] };
    let tables = rotation.map(|rotation| Tables::<T>::random(device, rng, rotation, sizes));
    let mut operand = HeadsOperand::<T>::random(device, rng, sizes, cols, layout);
    let mut run = |layout: Layout| {
        operand.from = Tensor::upload(device, &operand.x, sizes, layout);
        operand.to = Tensor::poisoned(device, sizes, layout);
        let params = QkNormRope { norm, across_heads, order: layout.order(), ..QkNormRope::default() };
        let rope = tables.as_ref().map(|tables| tables.rope(layout.order()));
        let mut heads = operand.arg(norm, false);
        if norm == QkNorm::None {
            heads.affine = Default::default();
        }
        let device = device.with_override(LaunchOverride::default());
        qk_norm_rope(&device, None, Some(heads), rope, params, Stream::default()).expect("valid arguments");
        let launches = device.take_launches();
        let is_special = launches[0].starts_with(&format!("{kernel} "));
        assert_eq!(is_special, layout != odd, "{kernel} and not {launches:?}, or the other way round");
        operand.to.download()
    };
    same_bits(&run(layout), &run(odd));
}

fn alignment<T: Element>(device: &Device) {
    let is_rotated = |dim: usize| {
        let wide = Rotation::of(Kind::Wide, true, dim);
        [
            None,
            Some(wide),
            Some(Rotation { single: false, by_batch: true, ..wide }),
            Some(Rotation { offset: 1, ..wide }),
            Some(Rotation::of(Kind::Narrow, true, dim)),
            Some(Rotation::of(Kind::Complex, true, dim)),
            Some(Rotation::of(Kind::Wide, false, dim)),
            Some(Rotation { single: false, ..Rotation::of(Kind::Narrow, false, dim) }),
        ]
    };
    // Tests kernels for head dimensions 64 and 128. The heads are a view of a fused QKV tensor. A warp of
    // these kernels processes one or several heads.
    for (norm, heads, dim, kernel) in [
        (QkNorm::None, 5, 64, "rope_d64_warp1"),
        (QkNorm::None, 3, 128, "rope_d128_warp1"),
        (QkNorm::Rms, 9, 64, "qk_norm_rope_rms_d64_warp1"),
        (QkNorm::Rms, 5, 128, "qk_norm_rope_rms_d128_warp1"),
        (QkNorm::LlamaRms, 3, 128, "qk_norm_rope_rms_d128_warp1"),
        (QkNorm::MochiRms, 3, 128, "qk_norm_rope_rms_d128_warp1"),
    ] {
        for rotation in is_rotated(dim) {
            check::<T>(device, kernel, norm, [2, 4, heads, dim], false, rotation, Layout::Fused);
        }
    }
    // Angles per head, with a norm.
    for norm in [QkNorm::Rms, QkNorm::LlamaRms, QkNorm::MochiRms] {
        for rotation in is_rotated(128).into_iter().flatten() {
            let rotation = Rotation { by_head: true, ..rotation };
            check::<T>(
                device,
                "qk_norm_rope_rms_qk_warp1",
                norm,
                [2, 4, 5, 128],
                false,
                Some(rotation),
                Layout::Fused,
            );
        }
    }
    // Tests kernels that keep a row (all heads of a token) in registers. The row is shorter than a tile (512
    // columns), consists of several whole tiles, or has the maximum length of the kernel. If a row has
    // several heads, all heads of a token have the same rotation angles.
    let (held4, held10) = ("qk_norm_rope_rms_block4", "qk_norm_rope_rms_block10");
    for (heads, dim, kernel) in [
        (2, 32, held4),
        (12, 128, held4),
        (32, 64, held4),
        (1, 2_048, held4),
        (1, 1_000, held4),
        (40, 128, held10),
        (1, 5_120, held10),
    ] {
        for rotation in is_rotated(dim).into_iter().take(6) {
            check::<T>(device, kernel, QkNorm::Rms, [2, 3, heads, dim], true, rotation, Layout::Dense);
        }
    }
    // Long heads, and angles per head.
    for (heads, dim) in [(1, 2_048), (3, 96), (2, 264)] {
        for rotation in is_rotated(dim).into_iter().take(6).flatten() {
            let rotation = Rotation { by_head: true, ..rotation };
            check::<T>(
                device,
                "rope_qk_warp1",
                QkNorm::None,
                [2, 4, heads, dim],
                false,
                Some(rotation),
                Layout::Dense,
            );
        }
    }
}

/// Tests tensors with many tokens. The launch then assigns so many heads of a token to each warp that the
/// warp processes them in several batches.
fn several_batches(device: &Device) {
    let rotation = Some(Rotation::of(Kind::Wide, true, 64));
    let kernel = "qk_norm_rope_rms_d64_warp1";
    check::<bf16>(device, kernel, QkNorm::Rms, [1, 8_200, 9, 64], false, rotation, Layout::Dense);
}
