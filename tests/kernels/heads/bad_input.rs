//! Tests arguments that `rope` and `qk_norm_rope` reject, and the error texts.
use half::bf16;
use oxiwarp::{
    Affine, Angles, Buffer, Device, Error, Heads, HeadsOrder, QkNorm, QkNormRope, Rope, Stream, View,
    qk_norm_rope, rope,
};

use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("rope::bad_input", rope_refuses),
    ("qk_norm_rope::bad_input", norm_refuses),
    ("qk_norm_rope::weights_of_two_types", refuses_two_types),
];

#[track_caller]
fn says(result: Result<(), Error>, text: &str) {
    let error = result.expect_err(text).to_string();
    assert!(error.contains(text), "the error is: {error}\nexpected in it: {text}");
}

/// Makes an operand of shape `[1, 4, 2, 8]` (batch, tokens, heads, columns) from the buffers of its input and
/// of its result.
fn heads<'a>(x: &'a Buffer<f32>, y: &'a mut Buffer<f32>) -> Heads<'a> {
    let shape = [1, 4, 2, 8];
    Heads { x: x.view(&shape).unwrap(), affine: Affine::default(), y: y.view_mut(&shape).unwrap() }
}

fn rope_refuses(device: &Device) {
    let x = device.upload(&[1.0_f32; 64]).unwrap();
    let table = device.upload(&[1.0_f32; 64]).unwrap();
    let same = device.upload(&[bf16::ONE; 64]).unwrap();
    let mut y = device.upload(&[7.0_f32; 64]).unwrap();
    let view = |shape: &[i64]| table.view(shape).unwrap();
    let of = |cos, sin| Rope::new(Angles::Tables { cos, sin }, true);
    let good = of(view(&[4, 8]), view(&[4, 8]));
    let complex = Angles::Complex(view(&[4, 8]));
    let counted = |shape: &[i64]| Angles::Frequencies { frequencies: view(shape), positions: None };
    let given = |shape: &[i64]| Angles::Frequencies { frequencies: view(&[4]), positions: Some(view(shape)) };
    for (how, text) in [
        (of(view(&[3, 8]), view(&[3, 8])), "rope: cos has shape [3, 8], expected 4 tokens"),
        (
            of(view(&[4, 6]), view(&[4, 6])),
            "rope: cos has shape [4, 6], expected a last dimension of one of [8, 4]",
        ),
        (of(view(&[4, 8]), view(&[4, 4])), "rope: sin has shape [4, 4], expected [4, 8]"),
        (of(view(&[2, 4, 8]), view(&[2, 4, 8])), "rope: cos has shape [2, 4, 8], expected one for 1 batches"),
        (
            of(view(&[1, 4, 3, 4]), view(&[1, 4, 3, 4])),
            "rope: cos has shape [1, 4, 3, 4], expected one for 1 batches and 2",
        ),
        (of(view(&[8]), view(&[8])), "rope: cos has shape [8], expected two to four dimensions"),
        (of(same.view(&[4, 8]).unwrap(), view(&[4, 8])), "rope: cos is bf16, expected f32"),
        (of(view(&[4, 8]), same.view(&[4, 8]).unwrap()), "rope: sin is bf16, expected f32"),
        (Rope { columns: Some(7), ..good }, "rope: rotary_dim is 7, expected an even number"),
        (Rope { columns: Some(10), ..good }, "rope: rotary_dim is 10, expected an even number"),
        (Rope { offset: Some(1), ..good }, "rope: offset is 1, expected the number of a token"),
        (Rope { offset: Some(-1), ..good }, "rope: offset is -1, expected the number of a token"),
        (Rope::new(complex, false), "rope: interleaved is 0, expected true for complex tables"),
        (Rope::new(counted(&[3]), true), "rope: frequencies has shape [3], expected [4]"),
        (Rope::new(given(&[3]), true), "rope: positions has shape [3], expected 4 tokens"),
        (Rope::new(given(&[1, 4, 1]), true), "rope: positions has shape [1, 4, 1], expected [S] or [B, S]"),
    ] {
        let run = rope(
            device,
            Some(heads(&x, &mut y)),
            None,
            how,
            HeadsOrder::TokensFirst,
            None,
            Stream::default(),
        );
        says(run, text);
    }
    assert!(y.download().unwrap().iter().all(|y| *y == 7.0), "something was written");
    let (q, k) = (x.view(&[1, 4, 2, 8]).unwrap(), x.view(&[2, 4, 1, 8]).unwrap());
    let mut out = device.upload(&[7.0_f32; 64]).unwrap();
    let both = [(q, &mut y, [1, 4, 2, 8]), (k, &mut out, [2, 4, 1, 8])].map(|(x, y, shape)| Heads {
        x,
        affine: Affine::default(),
        y: y.view_mut(&shape).unwrap(),
    });
    let [q, k] = both.map(Some);
    let run = rope(device, q, k, good, HeadsOrder::TokensFirst, None, Stream::default());
    says(run, "rope: k has shape [2, 4, 1, 8], expected the batches, tokens and columns of q: [1, 4, .., 8]");
    let nothing = rope(device, None, None, good, HeadsOrder::TokensFirst, None, Stream::default());
    says(nothing, "rope: q has shape [], expected q, k or both");
}

fn norm_refuses(device: &Device) {
    let x = device.upload(&[1.0_f32; 64]).unwrap();
    let half = device.upload(&[bf16::ONE; 16]).unwrap();
    let mut y = device.upload(&[7.0_f32; 64]).unwrap();
    let run = |x: View, affine: Affine, y: &mut Buffer<f32>, shape: &[i64], params: QkNormRope| {
        let heads = Heads { x, affine, y: y.view_mut(shape).unwrap() };
        qk_norm_rope(device, None, Some(heads), None, params, Stream::default())
    };
    let weight = |view| Affine { weight: Some(view), bias: None };
    let (good, params) = ([1, 4, 2, 8], QkNormRope::default());
    let across = QkNormRope { across_heads: true, ..params };
    let at = |shape: &[i64]| x.view(shape).unwrap();
    for (view, affine, shape, params, text) in [
        (
            at(&good),
            weight(at(&[4])),
            &good[..],
            params,
            "qk_norm_rope: k_weight has shape [4], expected [8]",
        ),
        (at(&good), weight(at(&[8])), &good, across, "qk_norm_rope: k_weight has shape [8], expected [16]"),
        (
            at(&good),
            weight(half.view(&[8]).unwrap()),
            &good,
            params,
            "qk_norm_rope: k_weight is bf16, expected f32",
        ),
        (
            at(&good),
            Affine { weight: None, bias: Some(at(&[8])) },
            &good,
            params,
            "qk_norm_rope: bias is given, expected none for an RMSNorm",
        ),
        (
            at(&good),
            Affine::default(),
            &[1, 4, 8, 2],
            params,
            "qk_norm_rope: k_out has shape [1, 4, 8, 2], expected",
        ),
        (
            at(&[4, 16]),
            Affine::default(),
            &[4, 16],
            params,
            "qk_norm_rope: k has shape [4, 16], expected four dimensions",
        ),
        (
            at(&[1, 4, 16]),
            Affine::default(),
            &[1, 4, 16],
            QkNormRope { head_dim: Some(6), ..params },
            "qk_norm_rope: k has shape [1, 4, 16], expected a last dimension of heads of 6 columns",
        ),
        (
            x.view_strided(0, &good, &[64, 8, 32, 1]).unwrap(),
            Affine::default(),
            &good,
            across,
            "heads that are normalised together must lie side by side",
        ),
        (
            x.view_strided(0, &[1, 4, 2, 4], &[64, 16, 8, 2]).unwrap(),
            Affine::default(),
            &[1, 4, 2, 4],
            params,
            "its last dimension must be contiguous",
        ),
        (
            at(&good),
            Affine::default(),
            &good,
            QkNormRope { eps: f32::NAN, norm: QkNorm::Layer, ..params },
            "qk_norm_rope: eps is NaN, expected a finite number of 0 or more",
        ),
    ] {
        says(run(view, affine, &mut y, shape, params), text);
    }
    assert!(y.download().unwrap().iter().all(|y| *y == 7.0), "something was written");

    let q = Heads { x: at(&good), affine: Affine::default(), y: y.view_mut(&good).unwrap() };
    let mut other = device.alloc::<f32>(64).unwrap();
    let k =
        Heads { x: at(&[1, 2, 4, 8]), affine: Affine::default(), y: other.view_mut(&[1, 2, 4, 8]).unwrap() };
    let both = qk_norm_rope(device, Some(q), Some(k), None, params, Stream::default());
    says(
        both,
        "qk_norm_rope: k has shape [1, 2, 4, 8], expected the batches, tokens and columns of q: [1, 4, .., 8]",
    );
}

/// Tests that the op rejects an f32 norm weight for only the queries or only the keys. With an f32 weight,
/// Llama's norm omits a rounding. The kernel has one flag for this rounding, which applies to queries and
/// keys.
fn refuses_two_types(device: &Device) {
    let (shape, params) = ([1, 4, 2, 8], QkNormRope { norm: QkNorm::LlamaRms, ..QkNormRope::default() });
    let x = device.upload(&[bf16::ONE; 64]).unwrap();
    let single = device.upload(&[1.0_f32; 8]).unwrap();
    let mut out = [(); 2].map(|()| device.upload(&[bf16::ONE; 64]).unwrap());
    let mut run = |weights: [Option<View>; 2]| {
        let [q_out, k_out] = &mut out;
        let [q, k] = [(q_out, weights[0]), (k_out, weights[1])].map(|(y, weight)| Heads {
            x: x.view(&shape).unwrap(),
            affine: Affine { weight, bias: None },
            y: y.view_mut(&shape).unwrap(),
        });
        qk_norm_rope(device, Some(q), Some(k), None, params, Stream::default())
    };
    let [half, single] = [x.view_strided(0, &[8], &[1]).unwrap(), single.view(&[8]).unwrap()];
    for weights in
        [[Some(half), Some(single)], [Some(single), Some(half)], [None, Some(single)], [Some(single), None]]
    {
        says(run(weights), "qk_norm_rope: one of q_weight and k_weight is f32, expected both or none");
    }
    for weights in [[Some(half), None], [Some(half); 2], [Some(single); 2]] {
        run(weights).expect("one type");
    }
}
