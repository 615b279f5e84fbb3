//! Tests `rope` and `qk_norm_rope` on tensors without batches, tokens or heads.
use oxiwarp::{Affine, Device, Heads, HeadsOrder, QkNorm, QkNormRope, Rope, Stream, qk_norm_rope, rope};
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::tensor::{random, values};

use crate::support::heads::{Kind, Layout, Rotation, Tables, Tensor};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("rope::nothing_to_rotate", nothing_to_rotate),
    ("rope::keys_without_heads", keys_without_heads),
    ("qk_norm_rope::nothing_to_normalise", nothing_to_normalise),
];

/// The tested head dimensions. For some of them, there are specialised kernels. For the others, the op uses
/// kernels that support every head dimension.
const COLUMNS: [usize; 5] = [40, 64, 128, 192, 1_024];
const ORDER: HeadsOrder = HeadsOrder::TokensFirst;

/// Runs the op `run` with empty queries, with empty keys, and with both. The empty tensors have no batch, no
/// token or no head. Some have four dimensions, and others have three (heads merged).
fn of_nothing(device: &Device, dim: usize, run: impl Fn([Option<Heads>; 2], Rope)) {
    let x = device.upload::<f32>(&[]).unwrap();
    let mut made = [(); 2].map(|()| device.upload::<f32>(&[]).unwrap());
    for sizes in [[0, 2, 2, dim], [2, 0, 2, dim], [2, 3, 0, dim], [1, 16, 0, dim]] {
        let tables =
            Tables::<f32>::random(device, &mut random(seed()), Rotation::of(Kind::Wide, true, dim), sizes);
        let [b, s, h, d] = sizes.map(|size| size as i64);
        for shape in [&[b, s, h, d][..], &[b, s, h * d]] {
            for wanted in [[true, false], [false, true], [true, true]] {
                let [q, k] = made.each_mut().map(|y| Heads {
                    x: x.view(shape).unwrap(),
                    affine: Affine::default(),
                    y: y.view_mut(shape).unwrap(),
                });
                run([wanted[0].then_some(q), wanted[1].then_some(k)], tables.rope(ORDER));
            }
        }
    }
}

fn nothing_to_rotate(device: &Device) {
    for dim in COLUMNS {
        of_nothing(device, dim, |[q, k], by| {
            rope(device, q, k, by, ORDER, Some(dim as i64), Stream::default()).expect("nothing to do");
        });
    }
}

fn nothing_to_normalise(device: &Device) {
    for dim in COLUMNS {
        for norm in [QkNorm::None, QkNorm::Rms, QkNorm::LlamaRms, QkNorm::MochiRms, QkNorm::Layer] {
            for across_heads in [false, true] {
                let params =
                    QkNormRope { norm, across_heads, head_dim: Some(dim as i64), ..QkNormRope::default() };
                of_nothing(device, dim, |[q, k], by| {
                    qk_norm_rope(device, q, k, Some(by), params, Stream::default()).expect("nothing to do");
                });
            }
        }
    }
}

/// Tests keys without heads, together with queries that have heads.
fn keys_without_heads(device: &Device) {
    let rng = &mut random(seed());
    for dim in COLUMNS {
        let (sizes, none) = ([2, 3, 2, dim], [2, 3, 0, dim]);
        let tables = Tables::<f32>::random(device, rng, Rotation::of(Kind::Wide, true, dim), sizes);
        let x: Vec<f32> = values(rng, sizes.iter().product());
        let (from, no_keys) =
            (Tensor::upload(device, &x, sizes, Layout::Dense), device.upload::<f32>(&[]).unwrap());
        let mut to = Tensor::<f32>::poisoned(device, sizes, Layout::Dense);
        let mut nowhere = device.upload::<f32>(&[]).unwrap();
        let shape = none.map(|size| size as i64);
        let affine = Affine::default();
        let q = Heads { x: from.view(), affine, y: to.view_mut() };
        let k = Heads { x: no_keys.view(&shape).unwrap(), affine, y: nowhere.view_mut(&shape).unwrap() };
        rope(device, Some(q), Some(k), tables.rope(ORDER), ORDER, None, Stream::default()).expect("valid");
        same_bits(&to.download(), &tables.apply(&x, sizes));
    }
}
