//! Tests `attention` with sizes close to the tile sizes of Hopper's kernels, and with more tiles than SMs.
use half::{bf16, f16};
use oxiwarp::{Attention, AttentionInputs, Buffer, Device, Dtype, OwnedStream, Result, Stream, attention};
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::tensor::{random, values};

use crate::support::attention_case::{AttentionCase, check};
use crate::support::heads::Layout;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("attention_tiles::full", full),
    ("attention_tiles::causal", causal),
    ("attention_tiles::head_dims", head_dims),
    ("attention_tiles::layouts", layouts),
    ("attention_tiles::padding", padding),
    ("attention_tiles::sharp_scores", sharp),
    ("attention_tiles::many", many),
];

pub const GPU_TESTS: &[Test] = &[("attention_tiles::graph", graph)];

fn both(device: &Device, case: AttentionCase) {
    check::<f16>(device, &case);
    check::<bf16>(device, &case);
}

fn full(device: &Device) {
    // For head dimension 64, a tile has 192 queries and 128 keys. The tested sizes are one less than a tile,
    // equal to a tile, and one more than a tile. The last two sizes have several key tiles.
    for (sq, sk) in [(64, 1), (191, 127), (192, 128), (193, 129), (100, 256), (70, 391)] {
        both(device, AttentionCase::of([1, sq, sk, 2, 2, 64]));
    }
    // For head dimension 128, a tile has 128 queries and 144 keys. The host chooses tiles of 128 keys instead
    // if the last tile then has fewer empty rows.
    for (sq, sk) in
        [(127, 143), (128, 144), (129, 145), (65, 432), (64, 438), (129, 127), (64, 256), (65, 510)]
    {
        both(device, AttentionCase::of([1, sq, sk, 2, 1, 128]));
    }
}

fn causal(device: &Device) {
    // For some sizes, the diagonal of the causal mask passes through the corners of tiles. For other sizes,
    // there are more keys than queries. With fewer keys than queries, there are tiles in which no query
    // attends to a key.
    for (sq, sk) in [(192, 192), (256, 256), (64, 300), (200, 331), (450, 250), (300, 64)] {
        both(device, AttentionCase::of([1, sq, sk, 2, 1, 64]).causal());
    }
    for (sq, sk) in [(288, 288), (145, 289), (289, 145)] {
        both(device, AttentionCase::of([1, sq, sk, 1, 1, 128]).causal());
    }
}

fn head_dims(device: &Device) {
    for d in [8, 40, 72, 96, 112, 160, 256] {
        both(device, AttentionCase::of([1, 66, 170, 2, 1, d]));
        both(device, AttentionCase::of([1, 130, 165, 1, 1, d]).causal());
    }
}

fn layouts(device: &Device) {
    for layout in [Layout::Fused, Layout::At { offset: 1, gap: 0 }, Layout::HeadsFirst, Layout::Transposed] {
        both(device, AttentionCase::of([2, 70, 150, 2, 2, 64]).laid_out(layout));
        both(device, AttentionCase::of([2, 70, 150, 2, 2, 128]).laid_out(layout).causal());
    }
}

/// Tests key padding masks. The cases have one mask per batch, one mask per batch and head, or a single mask
/// for all batches and heads. The keys fill several whole tiles and a part of the last tile.
fn padding(device: &Device) {
    for dtype in [Some(Dtype::Bool), Some(Dtype::F32), None] {
        for full in
            [[true, false, false, true], [true, true, false, true], [false, false, false, true], [false; 4]]
        {
            both(device, AttentionCase::of([2, 70, 300, 4, 2, 64]).masked(dtype, full));
        }
        for d in [72, 128] {
            both(device, AttentionCase::of([2, 130, 150, 2, 2, d]).masked(dtype, [true, false, false, true]));
        }
    }
}

/// Tests queries with large values, so that one key gets nearly all the attention probability. While the
/// kernel iterates over the keys, the running maximum of the online softmax increases several times by a
/// large amount.
fn sharp(device: &Device) {
    for sharpness in [4.0, 30.0] {
        both(device, AttentionCase::of([1, 70, 600, 1, 1, 64]).sharp(sharpness));
        both(device, AttentionCase::of([1, 70, 600, 1, 1, 128]).sharp(sharpness).causal());
    }
}

/// Tests more query tiles than the GPU has SMs. A thread block then processes several tiles, one after the
/// other. These tiles may belong to different heads and batches.
fn many(device: &Device) {
    let heads = if device.arch().is_some() { 80 } else { 2 };
    both(device, AttentionCase::of([2, 130, 200, heads, 2, 64]));
    both(device, AttentionCase::of([2, 130, 200, heads, 2, 128]));
    both(device, AttentionCase::of([2, 130, 200, heads, 2, 64]).causal());
}

fn run(device: &Device, x: &Buffer<bf16>, y: &mut Buffer<bf16>, stream: Stream) -> Result<()> {
    const SHAPE: [i64; 4] = [1, 300, 4, 128];
    let [q, k, v] = [x.view(&SHAPE)?; 3];
    let inputs = AttentionInputs { q, k, v, mask: None, cu_seqlens: None };
    attention(device, inputs, y.view_mut(&SHAPE)?, None, Attention::default(), stream)
}

/// Captures the first launch of a kernel on a new `Device` into a CUDA graph. The launch creates tensor maps
/// (TMA descriptors). The launch must not make a driver call that CUDA forbids during a capture.
fn graph(device: &Device) {
    let fresh = Device::cuda_as(0, device.arch().expect("a GPU")).expect("it was there");
    let x: Vec<bf16> = values(&mut random(seed()), 300 * 4 * 128);
    let x = fresh.upload(&x).expect("memory");
    let mut y = fresh.alloc::<bf16>(x.len()).expect("memory");
    let stream = OwnedStream::new(&fresh).expect("a stream");
    let graph = stream.capture(|stream| run(&fresh, &x, &mut y, stream)).expect("a graph");
    // SAFETY: the graph accesses only `x` and `y`. Both stay alive until the stream has been synchronized.
    unsafe { graph.launch(&stream) }.expect("a launch");
    stream.synchronize().expect("a kernel that ran");
    let replayed = y.download().expect("a kernel that ran");
    run(&fresh, &x, &mut y, Stream::default()).expect("a launch");
    same_bits(&replayed, &y.download().expect("a kernel that ran"));
}
