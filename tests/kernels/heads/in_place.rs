//! Tests `rope` whose outputs are its inputs. The results must have the bits of the formula, for every kernel
//! and every kind of pairs. Outputs that overlap an input in any other way are refused.
use half::{bf16, f16};
use oxiwarp::{
    Affine, Angles, Device, Element, Heads, HeadsOrder, LaunchOverride, Overridable as _, QkNorm, QkNormRope,
    Rope, Stream, View, ViewMut, qk_norm_rope, rope as launch,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::tensor::{random, values};
use rand::rngs::StdRng;

use crate::support::errors::says;
use crate::support::heads::{Chosen, Kind, Layout, Rotation, Tables, Tensor};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("rope::in_place_f32", every_kernel::<f32>),
    ("rope::in_place_f16", every_kernel::<f16>),
    ("rope::in_place_bf16", every_kernel::<bf16>),
    ("rope::in_place_layouts", layouts),
    ("rope::in_place_frequencies", frequencies),
    ("rope::in_place_bad_input", refuses),
];

/// Returns the output that is the tensor `x` itself.
fn replaces<'a>(x: &View<'a>) -> ViewMut<'a> {
    // SAFETY: the caller keeps the buffer of `x` and reads it only after the call.
    unsafe { ViewMut::from_raw(x.ptr().cast_mut(), x.dtype(), x.shape(), x.strides()) }.unwrap()
}

/// Rotates queries with `heads[0]` heads and keys with `heads[1]` heads in place. Returns the name of the
/// kernel that ran.
fn check<T: Element>(
    device: &Device,
    rng: &mut StdRng,
    [b, s, d]: [usize; 3],
    heads: [usize; 2],
    rotation: Rotation,
    layout: Layout,
) -> String {
    let tables = Tables::<T>::random(device, rng, rotation, [b, s, heads[0].max(heads[1]), d]);
    let tensors = heads.map(|h| {
        let x: Vec<T> = values(rng, b * s * h * d);
        (h > 0).then(|| (Tensor::upload(device, &x, [b, s, h, d], layout), x))
    });
    let [q, k] = tensors.each_ref().map(|tensor| {
        let x = tensor.as_ref()?.0.view();
        Some(Heads { x, affine: Affine::default(), y: replaces(&x) })
    });
    let device = device.with_override(LaunchOverride::default());
    let (order, rope) = (layout.order(), tables.rope(layout.order()));
    launch(&device, q, k, rope, order, None, Stream::default()).expect("valid arguments");
    for ((tensor, x), h) in tensors.iter().zip(heads).filter_map(|(tensor, h)| Some((tensor.as_ref()?, h))) {
        same_bits(&tensor.download(), &tables.apply(x, [b, s, h, d]));
    }
    let launches = device.take_launches();
    launches.first().map_or(String::new(), |launch| launch.split(' ').next().unwrap_or_default().into())
}

fn every_kernel<T: Element>(device: &Device) {
    let rng = &mut random(seed());
    let chosen = Some(Chosen { rows: 7, long: true, by_batch: true });
    for (d, columns, kernel) in [
        (2, 2, "any"),
        (7, 6, "any"),
        (8, 8, "block"),
        (64, 64, "block"),
        (64, 32, "block"),
        (96, 96, "block"),
        (128, 128, "block"),
        (130, 18, "any"),
        (256, 256, "block"),
        (520, 520, "block"),
    ] {
        for kind in [Kind::Wide, Kind::Narrow, Kind::Complex] {
            for interleaved in [true, false].into_iter().filter(|i| *i || kind != Kind::Complex) {
                for (single, by_head, offset, chosen) in [
                    (true, false, 0, None),
                    (false, false, 2, None),
                    (true, true, 0, None),
                    (true, false, 1, chosen),
                ] {
                    let single = single || kind == Kind::Complex;
                    let rotation = Rotation {
                        offset,
                        by_head,
                        single,
                        chosen,
                        ..Rotation::of(kind, interleaved, columns)
                    };
                    case!("{d} columns, {rotation:?}");
                    let ran = check::<T>(device, rng, [2, 5, d], [3, 3], rotation, Layout::Dense);
                    assert_eq!(ran, format!("rope_positions_{kernel}"));
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
                check::<bf16>(device, rng, [2, 3, d], heads, Rotation::of(Kind::Wide, true, d), layout);
                check::<bf16>(device, rng, [1, 3, d], heads, Rotation::of(Kind::Narrow, false, d), layout);
            }
        }
    }
    // There are so many tokens that a block has several.
    let rotation = Rotation::of(Kind::Wide, false, 64);
    check::<f16>(device, rng, [2, 2_500, 64], [26, 9], rotation, Layout::Fused);
    check::<f32>(device, rng, [2, 0, 64], [4, 4], Rotation::of(Kind::Wide, true, 64), Layout::Dense);
}

/// Tests angles that the kernel computes from frequencies. The result in place must have the bits of the
/// result in another tensor.
fn frequencies(device: &Device) {
    let rng = &mut random(seed());
    for (d, interleaved) in [(64, false), (24, true), (6, false)] {
        let (x, sizes): (Vec<f32>, _) = (values(rng, 2 * 5 * 3 * d), [2, 5, 3, d]);
        let frequencies = device.upload::<f32>(&values(rng, d / 2)).unwrap();
        let angles =
            Angles::Frequencies { frequencies: frequencies.view(&[d as i64 / 2]).unwrap(), positions: None };
        let rope = Rope::new(angles, interleaved);
        let run = |heads| {
            launch(device, Some(heads), None, rope, HeadsOrder::TokensFirst, None, Stream::default())
                .unwrap();
        };
        let from = Tensor::upload(device, &x, sizes, Layout::Dense);
        let mut to = Tensor::poisoned(device, sizes, Layout::Dense);
        run(Heads { x: from.view(), affine: Affine::default(), y: to.view_mut() });
        let view = from.view();
        run(Heads { x: view, affine: Affine::default(), y: replaces(&view) });
        case!("{d} columns, interleaved: {interleaved}");
        same_bits(&from.download(), &to.download());
    }
}

fn refuses(device: &Device) {
    let (tokens, d) = (4, 64);
    let table = device.upload(&[0.5_f32; 256]).unwrap();
    let tables = || table.view(&[tokens, d]).unwrap();
    let rope = Rope::new(Angles::Tables { cos: tables(), sin: tables() }, false);
    let memory = device.upload(&[1.0_f32; 2_048]).unwrap();
    let row = 2 * d;
    let at = |offset: i64, row: i64| {
        memory.view_strided(offset as usize, &[1, tokens, 1, d], &[tokens * row, row, d, 1]).unwrap()
    };
    let heads = |x: View<'static>, y: View<'static>| Heads { x, affine: Affine::default(), y: replaces(&y) };
    let at = |offset: i64, row: i64| {
        let view = at(offset, row);
        // SAFETY: the buffer lives until the end of the test.
        unsafe { View::from_raw(view.ptr(), view.dtype(), view.shape(), view.strides()) }.unwrap()
    };
    let run = |q, k| launch(device, Some(q), k, rope, HeadsOrder::TokensFirst, None, Stream::default());
    let q = || at(0, row);
    for (y, text) in [
        (at(4, row), "rope: q_out overlaps q"),
        (at(row, row), "rope: q_out overlaps q"),
        (at(0, d), "rope: q_out overlaps q"),
    ] {
        says(run(heads(q(), y), None), text);
    }
    // Each output may be only its own input.
    let k = || at(d, row);
    says(run(heads(q(), k()), Some(heads(k(), q()))), "rope: q_out overlaps k");
    says(run(heads(q(), at(1_024, row)), Some(heads(k(), q()))), "rope: k_out overlaps q");
    says(run(heads(q(), q()), Some(heads(q(), at(1_024, row)))), "rope: q_out overlaps k");
    let with_norm = |norm| {
        let params = QkNormRope { norm, ..QkNormRope::default() };
        qk_norm_rope(device, Some(heads(q(), q())), None, Some(rope), params, Stream::default())
    };
    says(with_norm(QkNorm::Rms), "qk_norm_rope: q_out overlaps q");
    assert!(memory.download().unwrap().iter().all(|x| *x == 1.0), "something was written");
    // Two slices of one buffer, each in place.
    run(heads(q(), q()), Some(heads(k(), k()))).unwrap();
    with_norm(QkNorm::None).unwrap();
}
