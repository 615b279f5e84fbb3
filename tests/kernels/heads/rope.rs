//! Tests that the result of `rope` has the same bits as the formula in f32. The tests cover every kind of
//! table, pairing of columns, layout and dtype.
use half::{bf16, f16};
use oxiwarp::{Angles, Device, Element, Heads, HeadsOrder, Rope, Stream, rope as launch};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, within_ulps};
use oxiwarp_tests::tensor::{random, values};
use rand::rngs::StdRng;

use crate::support::heads::{Kind, Layout, Rotation, Tables, Tensor};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("rope::f32", every_table::<f32>),
    ("rope::f16", every_table::<f16>),
    ("rope::bf16", every_table::<bf16>),
    ("rope::layouts", layouts),
    ("rope::frequencies", frequencies),
    ("rope::many_tokens", many_tokens),
    ("rope::conjugate_undoes", conjugate),
    ("rope::tokens_do_not_depend_on_each_other", batch_invariance),
];

/// Runs the op on queries with `heads[0]` heads and keys with `heads[1]` heads, and compares the results with
/// the formula.
pub(super) fn check<T: Element>(
    device: &Device,
    rng: &mut StdRng,
    [b, s, d]: [usize; 3],
    heads: [usize; 2],
    rotation: Rotation,
    layout: Layout,
) {
    let tables = Tables::<T>::random(device, rng, rotation, [b, s, heads[0].max(heads[1]), d]);
    let make = |rng: &mut StdRng, h: usize| -> Option<(Vec<T>, Tensor<T>, Tensor<T>)> {
        let x = values(rng, b * s * h * d);
        let (from, to) = (
            Tensor::upload(device, &x, [b, s, h, d], layout),
            Tensor::poisoned(device, [b, s, h, d], layout),
        );
        (h > 0).then_some((x, from, to))
    };
    let (mut q, mut k) = (make(rng, heads[0]), make(rng, heads[1]));
    fn arg<T: Element>(operand: &mut Option<(Vec<T>, Tensor<T>, Tensor<T>)>) -> Option<Heads<'_>> {
        operand.as_mut().map(|(_, x, y)| Heads { x: x.view(), affine: Default::default(), y: y.view_mut() })
    }
    let (order, rope) = (layout.order(), tables.rope(layout.order()));
    launch(device, arg(&mut q), arg(&mut k), rope, order, None, Stream::default()).expect("valid arguments");
    for ((x, _, y), h) in [q, k].iter().zip(heads).filter_map(|(operand, h)| Some((operand.as_ref()?, h))) {
        same_bits(&y.download(), &tables.apply(x, [b, s, h, d]));
    }
}

fn every_table<T: Element>(device: &Device) {
    let rng = &mut random(seed());
    for (d, columns) in [
        (2, 2),
        (6, 6),
        (7, 6),
        (8, 8),
        (64, 64),
        (72, 72),
        (96, 32),
        (128, 128),
        (130, 18),
        (256, 64),
        (520, 520),
    ] {
        for kind in [Kind::Wide, Kind::Narrow, Kind::Complex] {
            for interleaved in [true, false].into_iter().filter(|i| *i || kind != Kind::Complex) {
                for (single, by_head, by_batch, offset) in [
                    (true, false, false, 0),
                    (true, true, true, 0),
                    (false, false, true, 2),
                    (false, true, false, 0),
                ] {
                    let single = single || kind == Kind::Complex;
                    let rotation = Rotation {
                        offset,
                        by_batch,
                        by_head,
                        single,
                        ..Rotation::of(kind, interleaved, columns)
                    };
                    case!("{d} columns, {rotation:?}");
                    check::<T>(device, rng, [2, 5, d], [3, 3], rotation, Layout::Dense);
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
        for heads in [[1, 1], [5, 5], [8, 2], [9, 1], [0, 4], [7, 0], [33, 11]] {
            for d in [40, 64, 128, 192] {
                case!("{layout:?}, {heads:?} heads of {d}");
                check::<bf16>(device, rng, [2, 3, d], heads, Rotation::of(Kind::Wide, true, d), layout);
                check::<bf16>(device, rng, [1, 3, d], heads, Rotation::of(Kind::Narrow, false, d), layout);
            }
        }
    }
    check::<f32>(device, rng, [2, 0, 64], [4, 4], Rotation::of(Kind::Wide, true, 64), Layout::Dense);
}

/// Tests tensors with many tokens. The launch then assigns so many heads of a token to each warp that the
/// warp processes them in several batches.
fn many_tokens(device: &Device) {
    let rng = &mut random(seed());
    for by_head in [false, true] {
        let rotation = Rotation { by_head, ..Rotation::of(Kind::Narrow, false, 8) };
        check::<bf16>(device, rng, [2, 5_000, 8], [17, 17], rotation, Layout::Dense);
    }
    check::<f16>(device, rng, [1, 5_000, 16], [26, 9], Rotation::of(Kind::Wide, true, 16), Layout::Fused);
}

/// Tests angles that the kernel computes as `position * frequency`. The positions are the token indices, or
/// the values of a tensor, up to a million.
fn frequencies(device: &Device) {
    let (b, s, h, d) = (2, 6, 3, 64);
    for (interleaved, given, columns) in
        [(true, false, 64), (false, true, 64), (true, true, 24), (false, false, 12)]
    {
        let x: Vec<f32> = values(&mut random(seed()), b * s * h * d);
        let frequencies: Vec<f32> =
            (0..columns / 2).map(|i| 1e4_f32.powf(-2.0 * i as f32 / columns as f32)).collect();
        let positions: Vec<f32> =
            (0..b * s).map(|i| [0.0, 1.0, 17.5, 4_095.0, 123_456.0, 999_999.0][i % 6] + i as f32).collect();
        let (tensor, mut y) = (
            Tensor::upload(device, &x, [b, s, h, d], Layout::Dense),
            Tensor::<f32>::poisoned(device, [b, s, h, d], Layout::Dense),
        );
        let (f, p) = (device.upload(&frequencies).unwrap(), device.upload(&positions).unwrap());
        let angles = Angles::Frequencies {
            frequencies: f.view(&[columns as i64 / 2]).unwrap(),
            positions: given.then(|| p.view(&[b as i64, s as i64]).unwrap()),
        };
        let rope = Rope { columns: Some(columns as i64), ..Rope::new(angles, interleaved) };
        let heads = Heads { x: tensor.view(), affine: Default::default(), y: y.view_mut() };
        launch(device, Some(heads), None, rope, HeadsOrder::TokensFirst, None, Stream::default()).unwrap();
        let rotation = Rotation::of(Kind::Wide, interleaved, columns);
        let expected: Vec<f64> = (0..x.len())
            .map(|at| {
                let (row, column) = (at / d, at % d);
                let token = row / h;
                if column >= columns {
                    return f64::from(x[at]);
                }
                let (pair, second) = rotation.pair(column);
                let position = if given { positions[token] } else { (token % s) as f32 };
                let angle = f64::from(position * frequencies[pair]);
                let other = f64::from(x[row * d + rotation.partner(column)]);
                f64::from(x[at]) * angle.cos() + if second { other } else { -other } * angle.sin()
            })
            .collect();
        // The absolute error of sine and cosine is at most 2^-23, and the magnitude of each element of `x` is
        // below 4. This bounds the absolute error of a result, but the comparison takes a bound in ulp. If 64
        // is added to all results, their ulp is nearly the same, so a bound in ulp bounds the absolute error.
        let shifted = |v: f64| v + 64.0;
        let got: Vec<f32> = y.download().iter().map(|v| v + 64.0).collect();
        within_ulps(&got, &expected.into_iter().map(shifted).collect::<Vec<_>>(), d, 1.0);
    }
}

/// Tests the option `conjugate`, which rotates by the negative angle. After a rotation by the angle, it must
/// restore the input, except for rounding errors.
fn conjugate(device: &Device) {
    for interleaved in [true, false] {
        let (sizes, rng) = ([1, 4, 2, 64], &mut random(seed()));
        let x: Vec<f32> = values(rng, sizes.iter().product());
        let tables = Tables::<f32>::random(device, rng, Rotation::of(Kind::Narrow, interleaved, 64), sizes);
        let there = Tensor::upload(device, &x, sizes, Layout::Dense);
        let (mut rotated, mut back) =
            (Tensor::poisoned(device, sizes, Layout::Dense), Tensor::poisoned(device, sizes, Layout::Dense));
        let run = |from: &Tensor<f32>, to: &mut Tensor<f32>, conjugate: bool| {
            let rope = Rope { conjugate, ..tables.rope(HeadsOrder::TokensFirst) };
            let heads = Heads { x: from.view(), affine: Default::default(), y: to.view_mut() };
            launch(device, Some(heads), None, rope, HeadsOrder::TokensFirst, None, Stream::default())
                .unwrap();
        };
        run(&there, &mut rotated, false);
        run(&rotated, &mut back, true);
        assert_ne!(rotated.download(), x);
        for (got, wanted) in back.download().iter().zip(&x) {
            assert!((got - wanted).abs() < 2e-6, "{got} is not {wanted}");
        }
    }
}

fn batch_invariance(device: &Device) {
    let (d, h, s, rng) = (64, 5, 300, &mut random(seed()));
    let x: Vec<f16> = values(rng, s * h * d);
    let tables = Tables::<f16>::random(device, rng, Rotation::of(Kind::Wide, false, d), [1, s, h, d]);
    let run = |x: &[f16], tokens: std::ops::Range<usize>| {
        let sizes = [1, tokens.len(), h, d];
        let (from, mut to) = (
            Tensor::upload(device, x, sizes, Layout::Dense),
            Tensor::<f16>::poisoned(device, sizes, Layout::Dense),
        );
        let table = |i: usize| {
            let width = d as i64;
            tables.single[i]
                .view_strided(tokens.start * d, &[tokens.len() as i64, width], &[width, 1])
                .unwrap()
        };
        let rope = Rope::new(Angles::Tables { cos: table(0), sin: table(1) }, false);
        let heads = Heads { x: from.view(), affine: Default::default(), y: to.view_mut() };
        launch(device, Some(heads), None, rope, HeadsOrder::TokensFirst, None, Stream::default()).unwrap();
        to.download()
    };
    let all = run(&x, 0..s);
    for token in [0, 1, 150, s - 1] {
        let task = token * h * d..(token + 1) * h * d;
        same_bits(&run(&x[task.clone()], token..token + 1), &all[task]);
    }
}
