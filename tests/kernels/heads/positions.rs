//! Tests tables of angles whose rows are chosen by positions. The results must have the bits of the formula
//! for `rope`, and must be close to the results in f64 for `qk_norm_rope`. Some positions are outside of the
//! tables: they name the last row. The kernels are in the units `rope_positions` and
//! `qk_norm_rope_positions`.
use half::{bf16, f16};
use oxiwarp::{
    Affine, Angles, Buffer, Device, Element, Heads, HeadsOrder, LaunchOverride, Overridable as _, QkNorm,
    QkNormRope, Rope, Stream, rope as launch,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::tensor::random;

use super::{qk_norm_rope, rope};
use crate::support::errors::says;
use crate::support::heads::{Chosen, Kind, Layout, Rotation};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("rope::positions_f32", rotations::<f32>),
    ("rope::positions_f16", rotations::<f16>),
    ("rope::positions_bf16", rotations::<bf16>),
    ("rope::positions_of_layouts", layouts),
    ("rope::positions_bad_input", refuses),
    ("rope::positions_choose_a_kernel", kernels),
    ("qk_norm_rope::positions_f32", normed::<f32>),
    ("qk_norm_rope::positions_bf16", normed::<bf16>),
];

const CHOSEN: [Chosen; 3] = [
    Chosen { rows: 9, long: true, by_batch: false },
    Chosen { rows: 1, long: false, by_batch: true },
    Chosen { rows: 40, long: true, by_batch: true },
];

fn rotations<T: Element>(device: &Device) {
    let rng = &mut random(seed());
    for (d, columns) in
        [(2, 2), (7, 6), (8, 8), (24, 24), (64, 64), (96, 32), (128, 128), (130, 18), (256, 64), (520, 520)]
    {
        for kind in [Kind::Wide, Kind::Narrow, Kind::Complex] {
            for interleaved in [true, false].into_iter().filter(|i| *i || kind != Kind::Complex) {
                for (at, (single, offset)) in [(true, 0), (false, 2), (true, 1)].into_iter().enumerate() {
                    let single = single || kind == Kind::Complex;
                    let chosen = Some(CHOSEN[at]);
                    let rotation =
                        Rotation { offset, single, chosen, ..Rotation::of(kind, interleaved, columns) };
                    case!("{d} columns, {rotation:?}");
                    rope::check::<T>(device, rng, [2, 5, d], [3, 3], rotation, Layout::Dense);
                }
            }
        }
    }
}

fn layouts(device: &Device) {
    let rng = &mut random(seed());
    for layout in [
        Layout::Dense,
        Layout::Fused,
        Layout::At { offset: 1, gap: 0 },
        Layout::HeadsFirst,
        Layout::Transposed,
    ] {
        for heads in [[1, 1], [8, 2], [9, 1], [0, 4], [7, 0], [33, 11]] {
            for d in [40, 64, 128, 192] {
                case!("{layout:?}, {heads:?} heads of {d}");
                let wide = Rotation { chosen: Some(CHOSEN[2]), ..Rotation::of(Kind::Wide, true, d) };
                let narrow = Rotation { chosen: Some(CHOSEN[0]), ..Rotation::of(Kind::Narrow, false, d) };
                rope::check::<bf16>(device, rng, [2, 3, d], heads, wide, layout);
                rope::check::<bf16>(device, rng, [1, 3, d], heads, narrow, layout);
            }
        }
    }
    let none = Rotation { chosen: Some(CHOSEN[0]), ..Rotation::of(Kind::Wide, true, 64) };
    rope::check::<f32>(device, rng, [2, 0, 64], [4, 4], none, Layout::Dense);
    // The warps of the kernels for 64 columns process several batches of heads.
    let many = Rotation { chosen: Some(CHOSEN[2]), ..Rotation::of(Kind::Wide, false, 64) };
    rope::check::<f16>(device, rng, [1, 5_000, 64], [26, 9], many, Layout::Fused);
}

fn normed<T: Element>(device: &Device) {
    let rng = &mut random(seed());
    for norm in [QkNorm::Layer, QkNorm::Rms, QkNorm::LlamaRms, QkNorm::MochiRms] {
        for d in [6, 64, 72, 127, 128, 160, 256, 260] {
            let even = d / 2 * 2;
            for (at, (kind, interleaved, columns)) in
                [(Kind::Wide, true, even), (Kind::Narrow, false, even), (Kind::Narrow, false, 4)]
                    .into_iter()
                    .enumerate()
            {
                let rotation =
                    Rotation { chosen: Some(CHOSEN[at]), ..Rotation::of(kind, interleaved, columns) };
                for across_heads in [false, true] {
                    case!("{norm:?}, {d} columns, across: {across_heads}, {rotation:?}");
                    let params = QkNormRope { norm, across_heads, ..QkNormRope::default() };
                    let (sizes, heads) = ([2, 3, d], [5, 2]);
                    qk_norm_rope::check::<T>(
                        device,
                        rng,
                        sizes,
                        heads,
                        Some(rotation),
                        Layout::Fused,
                        params,
                    );
                }
            }
        }
    }
}

/// Tests which kernel runs for the head dimensions of common models.
fn kernels(device: &Device) {
    let tables = device.upload(&vec![1.0_f32; 512]).unwrap();
    let positions = device.upload(&[1_i64, 0, 1]).unwrap();
    for (dim, kernel) in [
        (64, "rope_positions_d64_warp1"),
        (128, "rope_positions_d128_warp1"),
        (256, "rope_positions_block"),
        (6, "rope_positions_any"),
    ] {
        let device = device.with_override(LaunchOverride::default());
        let values = vec![0.5_f32; 6 * dim];
        let (x, mut y) = (device.upload(&values).unwrap(), device.upload(&values).unwrap());
        let shape = [1, 3, 2, dim as i64];
        let heads =
            Heads { x: x.view(&shape).unwrap(), affine: Affine::default(), y: y.view_mut(&shape).unwrap() };
        let table = || tables.view(&[2, dim as i64]).unwrap();
        let rope = Rope {
            positions: Some(positions.view(&[3]).unwrap()),
            ..Rope::new(Angles::Tables { cos: table(), sin: table() }, false)
        };
        launch(&device, Some(heads), None, rope, HeadsOrder::TokensFirst, None, Stream::default()).unwrap();
        let launches = device.take_launches();
        assert!(launches[0].starts_with(&format!("{kernel} ")), "{kernel} and not {launches:?}");
    }
}

fn refuses(device: &Device) {
    let (x, mut y) = (device.upload(&[1.0_f32; 64]).unwrap(), device.upload(&[7.0_f32; 64]).unwrap());
    let table: Buffer<f32> = device.upload(&[1.0_f32; 64]).unwrap();
    let (long, short) = (device.upload(&[0_i64; 8]).unwrap(), device.upload(&[0_i32; 8]).unwrap());
    let view = |shape: &[i64]| table.view(shape).unwrap();
    let of = |shape: &[i64], positions| Rope {
        positions: Some(positions),
        ..Rope::new(Angles::Tables { cos: view(shape), sin: view(shape) }, true)
    };
    let frequencies = Rope {
        positions: Some(long.view(&[4]).unwrap()),
        ..Rope::new(Angles::Frequencies { frequencies: view(&[4]), positions: None }, true)
    };
    let four = long.view(&[4]).unwrap();
    for (rope, text) in [
        (of(&[8, 8], view(&[4])), "rope: positions is f32, expected i64 or i32"),
        (of(&[8, 8], long.view(&[3]).unwrap()), "rope: positions has shape [3], expected 4 tokens"),
        (
            of(&[8, 8], long.view(&[2, 4]).unwrap()),
            "rope: positions has shape [2, 4], expected one for 1 batches",
        ),
        (
            of(&[8, 8], short.view(&[1, 4, 1]).unwrap()),
            "rope: positions has shape [1, 4, 1], expected [S] or [B, S]",
        ),
        (
            of(&[1, 8, 8], four),
            "rope: cos has shape [1, 8, 8], expected two dimensions, because there are positions",
        ),
        (of(&[0, 8], four), "rope: cos has shape [0, 8], expected between 1 and 2^31 - 1 rows"),
        (of(&[10, 6], four), "rope: cos has shape [10, 6], expected a last dimension of one of [8, 4]"),
        (Rope { offset: Some(1), ..of(&[8, 8], four) }, "rope: offset is 1, expected the number of a token"),
        (frequencies, "rope: positions is given, expected none for frequencies"),
    ] {
        let shape = [1, 4, 2, 8];
        let heads =
            Heads { x: x.view(&shape).unwrap(), affine: Affine::default(), y: y.view_mut(&shape).unwrap() };
        says(launch(device, Some(heads), None, rope, HeadsOrder::TokensFirst, None, Stream::default()), text);
    }
    assert!(y.download().unwrap().iter().all(|y| *y == 7.0), "something was written");
}
