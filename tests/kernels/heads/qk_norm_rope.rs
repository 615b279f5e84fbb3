//! Compares `qk_norm_rope` with f64 results: every kind of norm, over each head or across all heads of a
//! token, with and without a rotation.
use half::{bf16, f16};
use oxiwarp::{Affine, Buffer, Device, Element, Heads, QkNorm, QkNormRope, Stream, qk_norm_rope};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, within_ulps};
use oxiwarp_tests::tensor::{random, values, wide};
use rand::rngs::StdRng;

use crate::support::heads::{Kind, Layout, Rotation, Sizes, Tables, Tensor};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("qk_norm_rope::f32_heads", heads::<f32>),
    ("qk_norm_rope::f16_heads", heads::<f16>),
    ("qk_norm_rope::bf16_heads", heads::<bf16>),
    ("qk_norm_rope::f32_across", across::<f32>),
    ("qk_norm_rope::bf16_across", across::<bf16>),
    ("qk_norm_rope::layouts", layouts),
    ("qk_norm_rope::many_tokens", many_tokens),
    ("qk_norm_rope::exact_is_norm_then_rope", exact),
    ("qk_norm_rope::tokens_do_not_depend_on_each_other", batch_invariance),
];

const NORMS: [QkNorm; 4] = [QkNorm::Layer, QkNorm::Rms, QkNorm::LlamaRms, QkNorm::MochiRms];

/// Absolute error that is allowed for every result, even if it is many ulp of the result. A rotated value is
/// the sum of two terms. Each term is at most 16 and has an error of a few f32 ulp. If the terms cancel, this
/// error is large relative to the sum.
const CANCELLED: f64 = 2e-5;

/// Returns the error bound of a result in ulp of the element type. A 16-bit result may have an error of half
/// an ulp from its rounding, plus a small error from the f32 arithmetic. For f32 results, the bound is the
/// same as in the tests of `rms_norm`.
fn bound<T: Element>() -> f64 {
    if size_of::<T>() == 4 { 6.0 } else { 0.52 }
}

/// The queries or the keys of a test.
pub struct HeadsOperand<T> {
    sizes: Sizes,
    pub x: Vec<T>,
    pub from: Tensor<T>,
    pub to: Tensor<T>,
    weight: Vec<T>,
    bias: Vec<T>,
    same: [Buffer<T>; 2],
    single: [Buffer<f32>; 2],
}

impl<T: Element> HeadsOperand<T> {
    pub fn random(device: &Device, rng: &mut StdRng, sizes: Sizes, cols: usize, layout: Layout) -> Self {
        let x: Vec<T> = values(rng, sizes.iter().product());
        let [weight, bias]: [Vec<T>; 2] = [values(rng, cols), values(rng, cols)];
        let same = [&weight, &bias].map(|values| device.upload(values).expect("memory"));
        let single = [&weight, &bias].map(|values| {
            device.upload(&values.iter().map(|v| v.to_f32()).collect::<Vec<_>>()).expect("memory")
        });
        let (from, to) = (Tensor::upload(device, &x, sizes, layout), Tensor::poisoned(device, sizes, layout));
        Self { sizes, x, from, to, weight, bias, same, single }
    }

    /// Returns the queries or keys as an argument of the op. If `single` is true, the norm's weight and bias
    /// are in f32.
    pub fn arg(&mut self, norm: QkNorm, single: bool) -> Heads<'_> {
        let cols = [self.weight.len() as i64];
        let view = |i: usize| {
            if single { self.single[i].view(&cols) } else { self.same[i].view(&cols) }.expect("a vector")
        };
        let affine = Affine { weight: Some(view(0)), bias: (norm == QkNorm::Layer).then(|| view(1)) };
        Heads { x: self.from.view(), affine, y: self.to.view_mut() }
    }

    /// Computes the formula in f64.
    fn reference(&self, norm: QkNorm, eps: f64, tables: Option<&Tables<T>>) -> Vec<f64> {
        let ([_, s, h, d], cols) = (self.sizes, self.weight.len());
        let normed: Vec<f64> = wide(&self.x)
            .chunks(cols)
            .flat_map(|row| {
                let mean = if norm == QkNorm::Layer { row.iter().sum::<f64>() / cols as f64 } else { 0.0 };
                let inv =
                    (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64 + eps).sqrt().recip();
                let bias =
                    |c: usize| if norm == QkNorm::Layer { f64::from(self.bias[c].to_f32()) } else { 0.0 };
                let one =
                    |(c, x): (usize, &f64)| (x - mean) * inv * f64::from(self.weight[c].to_f32()) + bias(c);
                row.iter().enumerate().map(one).collect::<Vec<_>>()
            })
            .collect();
        let rotated = |at: usize| {
            let (row, column) = (at / d, at % d);
            let angle = tables.and_then(|tables| tables.at([row / h / s, row / h % s, row % h], column));
            angle.map_or(normed[at], |(cos, sin, second, partner)| {
                let other = normed[row * d + partner];
                normed[at] * f64::from(cos) + if second { other } else { -other } * f64::from(sin)
            })
        };
        (0..normed.len()).map(rotated).collect()
    }
}

/// Returns `got`, but replaces each value whose absolute error is at most `CANCELLED` by its expected value.
fn but_for_cancellation<T: Element>(got: Vec<T>, reference: &[f64]) -> Vec<T> {
    let close = |got: T, wanted: f64| (f64::from(got.to_f32()) - wanted).abs() <= CANCELLED;
    got.into_iter()
        .zip(reference)
        .map(|(g, w)| if close(g, *w) { T::from_f32(*w as f32) } else { g })
        .collect()
}

/// Runs the op on queries and keys and compares the results with the formula in f64. The op runs in fast
/// mode, in which it rounds each result only once.
pub(super) fn check<T: Element>(
    device: &Device,
    rng: &mut StdRng,
    [b, s, d]: [usize; 3],
    [q_heads, k_heads]: [usize; 2],
    rotation: Option<Rotation>,
    layout: Layout,
    params: QkNormRope,
) {
    let params = QkNormRope { exact: false, order: layout.order(), ..params };
    let cols = |heads: usize| if params.across_heads { heads * d } else { d };
    let sizes = [b, s, q_heads.max(k_heads), d];
    let tables = rotation.map(|rotation| Tables::<T>::random(device, rng, rotation, sizes));
    let mut sides = [q_heads, k_heads]
        .map(|h| (h > 0).then(|| HeadsOperand::<T>::random(device, rng, [b, s, h, d], cols(h), layout)));
    let [q, k] = &mut sides;
    let q = q.as_mut().map(|q| q.arg(params.norm, false));
    let k = k.as_mut().map(|k| k.arg(params.norm, true));
    let rope = tables.as_ref().map(|tables| tables.rope(layout.order()));
    qk_norm_rope(device, q, k, rope, params, Stream::default()).expect("valid arguments");
    for operand in sides.iter().flatten() {
        let expected = operand.reference(params.norm, f64::from(params.eps), tables.as_ref());
        within_ulps(&but_for_cancellation(operand.to.download(), &expected), &expected, d, bound::<T>());
    }
}

fn heads<T: Element>(device: &Device) {
    let rng = &mut random(seed());
    for d in [2, 7, 16, 64, 72, 96, 127, 128, 160, 256, 260] {
        for norm in NORMS {
            let even = d / 2 * 2;
            for rotation in [
                None,
                Some(Rotation::of(Kind::Wide, true, even)),
                Some(Rotation { by_head: true, ..Rotation::of(Kind::Narrow, true, even) }),
                Some(Rotation { offset: 1, ..Rotation::of(Kind::Wide, false, even) }),
                Some(Rotation::of(Kind::Narrow, false, if d >= 64 { 32 } else { 2 })),
            ] {
                case!("heads of {d}, {norm:?}, {rotation:?}");
                let params = QkNormRope { norm, ..QkNormRope::default() };
                check::<T>(device, rng, [2, 4, d], [3, 3], rotation, Layout::Dense, params);
            }
        }
    }
}

fn across<T: Element>(device: &Device) {
    let rng = &mut random(seed());
    for (h, d) in [(3, 6), (5, 16), (12, 128), (32, 64), (40, 128)] {
        for norm in NORMS {
            for rotation in [
                None,
                Some(Rotation::of(Kind::Wide, true, d)),
                Some(Rotation { by_head: true, by_batch: true, ..Rotation::of(Kind::Narrow, false, d) }),
            ] {
                case!("{h} heads of {d} across, {norm:?}, {rotation:?}");
                let params = QkNormRope { norm, across_heads: true, ..QkNormRope::default() };
                check::<T>(device, rng, [2, 3, d], [h, h], rotation, Layout::Dense, params);
            }
        }
    }
    let params = QkNormRope { across_heads: true, ..QkNormRope::default() };
    let rotation = Some(Rotation::of(Kind::Wide, true, 64));
    check::<T>(device, rng, [1, 3, 64], [8, 2], rotation, Layout::Dense, params);
}

fn layouts(device: &Device) {
    let rng = &mut random(seed());
    for layout in [Layout::Fused, Layout::At { offset: 1, gap: 0 }, Layout::HeadsFirst, Layout::Transposed] {
        for (heads, d) in [([1, 1], 64), ([9, 3], 128), ([0, 5], 96), ([4, 0], 256)] {
            for across_heads in [false, true] {
                if across_heads && layout == Layout::HeadsFirst {
                    continue;
                }
                case!("{layout:?}, {heads:?} heads of {d}");
                let params = QkNormRope { across_heads, ..QkNormRope::default() };
                let rotation = Some(Rotation::of(Kind::Wide, false, d));
                check::<bf16>(device, rng, [2, 3, d], heads, rotation, layout, params);
            }
        }
    }
}

/// Tests tensors with many tokens. The launch then assigns so many heads of a token to each warp that the
/// warp processes them in several batches.
fn many_tokens(device: &Device) {
    let rng = &mut random(seed());
    for norm in NORMS {
        let params = QkNormRope { norm, ..QkNormRope::default() };
        check::<bf16>(device, rng, [1, 5_000, 8], [17, 9], None, Layout::Dense, params);
    }
}

/// Tests exact mode. A call with norm and rotation must give the same bits as two calls in sequence. The
/// first of these calls applies only the norm and rounds its result. The second applies only the rotation.
fn exact(device: &Device) {
    let rng = &mut random(seed());
    for (norm, d, across_heads) in [
        (QkNorm::Rms, 128, false),
        (QkNorm::LlamaRms, 64, false),
        (QkNorm::MochiRms, 96, false),
        (QkNorm::Layer, 64, false),
        (QkNorm::Rms, 64, true),
    ] {
        let (sizes, params) = ([1, 5, 4, d], QkNormRope { norm, across_heads, ..QkNormRope::default() });
        let tables = Tables::<bf16>::random(device, rng, Rotation::of(Kind::Wide, true, d), sizes);
        let cols = if across_heads { 4 * d } else { d };
        let mut operand = HeadsOperand::<bf16>::random(device, rng, sizes, cols, Layout::Dense);
        let mut both = Tensor::poisoned(device, sizes, Layout::Dense);
        let run = |heads: Heads, rope, params| {
            qk_norm_rope(device, None, Some(heads), rope, params, Stream::default())
                .expect("valid arguments");
        };
        run(operand.arg(norm, false), None, params);
        let normed = Heads { x: operand.to.view(), affine: Affine::default(), y: both.view_mut() };
        run(normed, Some(tables.rope(params.order)), QkNormRope { norm: QkNorm::None, ..params });
        let apart = both.download();
        run(operand.arg(norm, false), Some(tables.rope(params.order)), params);
        same_bits(&operand.to.download(), &apart);
    }
}

fn batch_invariance(device: &Device) {
    let (h, d, s, rng) = (4, 128, 70, &mut random(seed()));
    for across_heads in [false, true] {
        let params = QkNormRope { across_heads, ..QkNormRope::default() };
        let cols = if across_heads { h * d } else { d };
        let mut all = HeadsOperand::<bf16>::random(device, rng, [1, s, h, d], cols, Layout::Dense);
        qk_norm_rope(device, Some(all.arg(params.norm, false)), None, None, params, Stream::default())
            .unwrap();
        let together = all.to.download();
        for token in [0, 33, s - 1] {
            let task = token * h * d..(token + 1) * h * d;
            let mut one = HeadsOperand::<bf16>::random(device, rng, [1, 1, h, d], cols, Layout::Dense);
            one.from = Tensor::upload(device, &all.x[task.clone()], [1, 1, h, d], Layout::Dense);
            one.same = [&all.weight, &all.bias].map(|values| device.upload(values).unwrap());
            qk_norm_rope(device, Some(one.arg(params.norm, false)), None, None, params, Stream::default())
                .unwrap();
            same_bits(&one.to.download(), &together[task]);
        }
    }
}
