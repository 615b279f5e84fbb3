//! Compares `attention` with f64 results: sizes close to tile sizes, layouts, masks, windows, and queries
//! that attend to no key.
use half::{bf16, f16};
use oxiwarp::{Attention, Device, Dtype, LaunchOverride, Overridable as _};

use crate::support::attention_case::{AttentionCase, check};
use crate::support::heads::Layout;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("attention::sizes", sizes),
    ("attention::head_dims", head_dims),
    ("attention::wide_heads", wide_heads),
    ("attention::wide_heads_with_less_shared_memory", small_tiles),
    ("attention::layouts", layouts),
    ("attention::causal", causal),
    ("attention::windows", windows),
    ("attention::masks", masks),
    ("attention::softcap_and_scale", softcap_and_scale),
    ("attention::sharp_scores", sharp),
];

/// Runs a case with f16 and with bf16 elements. f16 reveals small errors because it is more precise, and bf16
/// can represent larger numbers.
fn both(device: &Device, case: AttentionCase) {
    check::<f16>(device, &case);
    check::<bf16>(device, &case);
}

fn sizes(device: &Device) {
    // Most cases have one query, about as many queries as an MMA tile (16), or about as many as the tile of a
    // thread block. The number of keys goes from zero to about two key tiles. The last two cases use
    // grouped-query attention.
    for (sq, sk) in [(1, 1), (1, 130), (15, 64), (16, 63), (17, 65), (127, 7), (128, 128), (129, 129), (3, 0)]
    {
        both(device, AttentionCase::of([1, sq, sk, 1, 1, 64]));
    }
    both(device, AttentionCase::of([2, 33, 70, 4, 2, 64]));
    both(device, AttentionCase::of([1, 20, 40, 6, 1, 64]));
}

fn head_dims(device: &Device) {
    for d in [64, 72, 80, 96, 128, 256] {
        both(device, AttentionCase::of([1, 66, 100, 1, 1, d]));
    }
    // These head dimensions are smaller than an MMA tile (16), or they are not multiples of 16.
    for d in [1, 15, 40, 100] {
        both(device, AttentionCase::of([1, 20, 30, 2, 1, d]));
    }
}

/// Tests head dimensions above 128. The kernels for these dimensions have tiles of 128 queries and 128 keys.
/// A warp of these kernels copies one row of a tile at a time.
fn wide_heads(device: &Device) {
    wide_heads_of(device, [(127, 127), (128, 128), (129, 129), (5, 257), (1, 0)]);
}

/// Tests the kernel for head dimensions above 128 whose tiles have 64 keys. The op runs this kernel on GPUs
/// that have less shared memory per block than Hopper GPUs.
///
/// On other devices, the op prefers up to two other kernels. The test therefore runs the op three times, in
/// which it skips none, one and two kernels.
fn small_tiles(device: &Device) {
    let mut launched = vec![];
    for skip in 0..3 {
        let device = device.with_override(LaunchOverride { skip, ..LaunchOverride::default() });
        wide_heads_of(&device, [(127, 63), (128, 64), (129, 65), (5, 129), (1, 0)]);
        launched.extend(device.take_launches());
    }
    let small = launched.iter().filter(|launch| launch.starts_with("attention_d256_small_smem ")).count();
    assert!(small > 0, "{} launches of other kernels", launched.len());
}

fn wide_heads_of(device: &Device, sizes: [(usize, usize); 5]) {
    for (sq, sk) in sizes {
        both(device, AttentionCase::of([1, sq, sk, 2, 1, 256]));
    }
    both(device, AttentionCase::of([2, 33, 200, 2, 2, 168]));
    for (sq, sk) in [(130, 130), (20, 210), (210, 20)] {
        both(device, AttentionCase::of([1, sq, sk, 1, 1, 256]).causal());
    }
    both(device, AttentionCase::of([1, 40, 220, 1, 1, 136]).window(Some(30), Some(5)));
    both(device, AttentionCase::of([2, 30, 100, 2, 2, 256]).laid_out(Layout::HeadsFirst));
    both(device, AttentionCase::of([1, 40, 200, 1, 1, 256]).sharp(8.0));
}

fn layouts(device: &Device) {
    for layout in [Layout::Fused, Layout::At { offset: 1, gap: 0 }, Layout::HeadsFirst, Layout::Transposed] {
        both(device, AttentionCase::of([2, 40, 40, 3, 3, 64]).laid_out(layout));
    }
}

fn causal(device: &Device) {
    // The first pair of sizes has as many keys as queries. The second has more keys than queries, as with a
    // KV cache. The third has fewer keys than queries, so that the first queries attend to no key.
    for (sq, sk) in [(150, 150), (5, 140), (140, 5)] {
        both(device, AttentionCase::of([1, sq, sk, 2, 1, 64]).causal());
    }
    both(device, AttentionCase::of([1, 70, 70, 1, 1, 128]).causal());
    both(device, AttentionCase::of([1, 70, 70, 1, 1, 256]).causal());
}

fn windows(device: &Device) {
    for (before, after) in
        [(Some(3), None), (None, Some(3)), (Some(70), Some(0)), (Some(0), Some(0)), (Some(1), Some(90))]
    {
        both(device, AttentionCase::of([1, 200, 200, 1, 1, 64]).window(before, after));
    }
    both(device, AttentionCase::of([1, 200, 150, 1, 1, 64]).window(Some(20), None).causal());
    let all = Some(u32::MAX);
    both(device, AttentionCase::of([1, 30, 40, 1, 1, 64]).window(all, all));
}

fn masks(device: &Device) {
    for dtype in [Some(Dtype::Bool), Some(Dtype::F32), None] {
        // Masks of shape `[B, 1, 1, K]`, `[1, 1, Q, K]`, `[1, H, Q, K]` and `[B, H, Q, K]`.
        for full in
            [[true, false, false, true], [false, false, true, true], [false, true, true, true], [true; 4]]
        {
            both(device, AttentionCase::of([2, 30, 70, 2, 1, 64]).masked(dtype, full));
        }
    }
    both(
        device,
        AttentionCase::of([2, 20, 1, 2, 1, 64]).masked(Some(Dtype::Bool), [true, true, true, false]),
    );
    both(device, AttentionCase::of([1, 70, 90, 2, 1, 128]).masked(Some(Dtype::Bool), [true; 4]).causal());
}

fn softcap_and_scale(device: &Device) {
    let with = |params: Attention| AttentionCase { params, ..AttentionCase::of([1, 40, 70, 1, 1, 64]) };
    both(device, with(Attention { softcap: Some(5.0), ..Attention::default() }));
    both(
        device,
        with(Attention { softcap: Some(30.0), scale: Some(0.3), causal: true, ..Attention::default() }),
    );
    for scale in [0.01, 0.0, -0.2] {
        both(device, with(Attention { scale: Some(scale), ..Attention::default() }));
    }
}

/// Tests queries with large values, so that one key gets nearly all the attention probability. While the
/// kernel iterates over the keys, the running maximum of the online softmax increases many times.
fn sharp(device: &Device) {
    for sharpness in [4.0, 30.0] {
        both(device, AttentionCase::of([1, 40, 200, 1, 1, 64]).sharp(sharpness));
    }
}
