//! Tests `attention_backward` against gradients in f64. The cases cover every kernel, with masks, windows,
//! softcap and grouped-query attention.
use half::{bf16, f16};
use oxiwarp::{
    Attention, AttentionGradients, AttentionInputs, AttentionResult, Device, Dtype, Element, Stream,
    attention, attention_backward,
};
use oxiwarp_tests::case::seed;
use oxiwarp_tests::tensor::{random, values, wide};

use crate::support::attention_case::{AttentionCase, Mask, scores};
use crate::support::heads::{Layout, Tensor};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("attention_backward::sizes", sizes),
    ("attention_backward::head_dims", head_dims),
    ("attention_backward::layouts", layouts),
    ("attention_backward::what_is_seen", what_is_seen),
    ("attention_backward::softcap_and_scale", softcap_and_scale),
];

fn both(device: &Device, case: AttentionCase) {
    check::<f16>(device, &case);
    check::<bf16>(device, &case);
}

fn sizes(device: &Device) {
    // The numbers of queries and keys are close to the tile sizes. A thread block computes the gradients of
    // 64 or 128 queries and iterates over tiles of 16 to 64 keys. For the gradients of keys and values, a
    // block has 64 or 128 keys and iterates over tiles of queries.
    for (sq, sk) in [(1, 1), (65, 3), (3, 65), (70, 70), (64, 64), (5, 0), (130, 140)] {
        both(device, AttentionCase::of([1, sq, sk, 1, 1, 64]));
    }
    // With grouped-query attention, the gradient of a shared key is the sum over the query heads that use
    // this key.
    both(device, AttentionCase::of([2, 20, 40, 4, 2, 64]));
    both(device, AttentionCase::of([1, 70, 20, 3, 1, 64]));
}

fn head_dims(device: &Device) {
    for d in [64, 72, 128, 256, 40, 15] {
        both(device, AttentionCase::of([1, 40, 50, 1, 1, d]));
    }
}

fn layouts(device: &Device) {
    for layout in [Layout::Fused, Layout::At { offset: 1, gap: 0 }, Layout::HeadsFirst, Layout::Transposed] {
        both(device, AttentionCase::of([2, 20, 20, 2, 2, 64]).laid_out(layout));
    }
}

fn what_is_seen(device: &Device) {
    for (sq, sk) in [(90, 90), (20, 90), (90, 20)] {
        both(device, AttentionCase::of([1, sq, sk, 2, 1, 64]).causal());
    }
    both(device, AttentionCase::of([1, 90, 90, 1, 1, 64]).window(Some(5), Some(20)));
    both(device, AttentionCase::of([1, 90, 90, 1, 1, 128]).window(Some(5), None).causal());
    for dtype in [Some(Dtype::Bool), Some(Dtype::F32), None] {
        both(device, AttentionCase::of([2, 20, 70, 2, 1, 64]).masked(dtype, [true, false, false, true]));
        both(device, AttentionCase::of([2, 20, 70, 2, 1, 64]).masked(dtype, [true; 4]));
    }
}

fn softcap_and_scale(device: &Device) {
    let with = |params: Attention| AttentionCase { params, ..AttentionCase::of([1, 40, 70, 1, 1, 64]) };
    both(device, with(Attention { softcap: Some(3.0), ..Attention::default() }));
    both(device, with(Attention { scale: Some(-0.2), ..Attention::default() }));
    let all = AttentionCase::of([1, 40, 70, 2, 1, 64]).masked(None, [true; 4]).causal();
    both(device, AttentionCase { params: Attention { softcap: Some(2.0), ..all.params }, ..all });
}

/// The expected gradients in f64. The first field contains the gradients of queries, keys and values. Each
/// element is a sum, and the second field contains, for each element, the sum of the magnitudes of its terms.
struct Reference([Vec<f64>; 3], [Vec<f64>; 3]);

/// Computes the expected gradients in f64, with the formulas in the documentation of the kernels.
fn reference(case: &AttentionCase, mask: Option<&Mask>, [q, k, v, dout]: [&[f64]; 4]) -> Reference {
    let [b, sq, sk, heads, kv_heads, d] = case.sizes;
    let scale = case.params.scale.map_or(1.0 / (d as f64).sqrt(), f64::from);
    let mut sums = [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
    let mut sizes = sums.clone();
    for (b, i, h) in (0..b).flat_map(|b| (0..sq).flat_map(move |i| (0..heads).map(move |h| (b, i, h)))) {
        let scores = scores(case, mask, q, k, [b, i, h]);
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if max == f64::NEG_INFINITY {
            continue;
        }
        let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp() / sum).collect();
        let query = ((b * sq + i) * heads + h) * d;
        let key = |j: usize| ((b * sk + j) * kv_heads + h / (heads / kv_heads)) * d;
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let gradient: Vec<f64> = (0..sk).map(|j| dot(&dout[query..][..d], &v[key(j)..][..d])).collect();
        let delta = dot(&weights, &gradient);
        // The kernel computes `delta` as a sum of products `dout * out`, with a rounded `out`. The error of
        // `delta` is therefore relative to `delta_size`, the sum of the magnitudes of these products.
        // `delta_size` may be larger than `delta`.
        let out = |c: usize| (0..sk).map(|j| weights[j] * v[key(j) + c]).sum::<f64>();
        let delta_size: f64 = (0..d).map(|c| (dout[query + c] * out(c)).abs()).sum();
        for j in 0..sk {
            let mut slope = weights[j] * scale;
            if let Some(cap) = case.params.softcap.map(f64::from) {
                let product = dot(&q[query..][..d], &k[key(j)..][..d]) * scale;
                slope *= 1.0 - (product / cap).tanh().powi(2);
            }
            let ds = slope * (gradient[j] - delta);
            // `size` is the sum of the magnitudes of the terms of which `ds` is the sum. The errors of `ds`,
            // and of the products with `ds`, are relative to `size`.
            let size = slope.abs() * (gradient[j].abs() + delta_size);
            for c in 0..d {
                let parts = [(0, query, ds, size, k[key(j) + c]), (1, key(j), ds, size, q[query + c])];
                for (which, at, value, size, factor) in parts {
                    sums[which][at + c] += value * factor;
                    sizes[which][at + c] += size * factor.abs();
                }
                sums[2][key(j) + c] += weights[j] * dout[query + c];
                sizes[2][key(j) + c] += weights[j] * dout[query + c].abs();
            }
        }
    }
    Reference(sums, sizes)
}

fn check<T: Element>(device: &Device, case: &AttentionCase) {
    let (seed, [b, sq, sk, heads, kv_heads, d]) = (seed(), case.sizes);
    let mut rng = random(seed);
    let (q_sizes, k_sizes) = ([b, sq, heads, d], [b, sk, kv_heads, d]);
    let mut host =
        [q_sizes, k_sizes, k_sizes, q_sizes].map(|sizes| values::<T>(&mut rng, sizes.iter().product()));
    host[0].iter_mut().for_each(|q| *q = T::from_f32(q.to_f32() * case.sharpness));
    let upload = |values: &[T], sizes| Tensor::upload(device, values, sizes, case.layouts[0]);
    let on_device = [0, 1, 2, 3].map(|at| upload(&host[at], [q_sizes, k_sizes, k_sizes, q_sizes][at]));
    let poisoned = |sizes| Tensor::<T>::poisoned(device, sizes, case.layouts[0]);
    let (mut out, mut gradients) = (poisoned(q_sizes), [q_sizes, k_sizes, k_sizes].map(poisoned));
    let rows = [b as i64, heads as i64, sq as i64];
    let [mut lse, mut workspace] =
        [(); 2].map(|()| device.upload(&vec![f32::NAN; b * heads * sq]).expect("memory"));
    let mask = case.mask.map(|mask| Mask::random(device, case, mask, T::DTYPE, !seed));
    let mask_view = mask.as_ref().map(|mask| mask.view(case.mask.expect("there is one").dtype));
    let [q, k, v, dout] = on_device.each_ref().map(Tensor::view);
    let inputs = AttentionInputs { q, k, v, mask: mask_view, cu_seqlens: None };
    let stream = Stream::default();
    let lse_view = lse.view_mut(&rows).expect("dense");
    attention(device, inputs, out.view_mut(), Some(lse_view), case.params, stream).expect("a launch");
    let [dq, dk, dv] = gradients.each_mut().map(Tensor::view_mut);
    let workspace = workspace.view_mut(&rows).expect("dense");
    let result = AttentionResult { out: out.view(), lse: lse.view(&rows).expect("dense"), dout };
    let into = AttentionGradients { dq, dk, dv, workspace };
    attention_backward(device, inputs, result, into, case.params, stream).expect("a launch");
    let wide = host.each_ref().map(|values| wide(values));
    let Reference(sums, sizes) = reference(case, mask.as_ref(), wide.each_ref().map(Vec::as_slice));
    // The kernels round four tensors to the element type once. These are the attention probabilities `P`, the
    // gradients `dS` of the scores, the `out` from which `delta` is computed, and the resulting gradient.
    let unit = if T::DTYPE == Dtype::F16 { 2.0_f64.powi(-11) } else { 2.0_f64.powi(-8) };
    for (name, (got, (sums, sizes))) in
        ["dq", "dk", "dv"].iter().zip(gradients.iter().zip(sums.iter().zip(&sizes)))
    {
        for (at, (got, (expected, size))) in got.download().iter().zip(sums.iter().zip(sizes)).enumerate() {
            let (got, allowed) =
                (f64::from(got.to_f32()), 3.0 * unit * size + unit * expected.abs() + 1e-3 * unit);
            let right = (got - expected).abs() <= allowed;
            assert!(
                right,
                "{case:?}, seed {seed}, {name}[{at}]: {got:e}, expected {expected:e} within {allowed:e}"
            );
        }
    }
}
