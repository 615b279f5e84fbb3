//! Attention of random tensors, and its reference in f64.
use oxiwarp::{
    Attention, AttentionInputs, Buffer, Device, Dtype, Element, Result, Stream, View, ViewMut, attention,
};
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::ulp;
use oxiwarp_tests::tensor::{random, values, wide};

use super::heads::{Layout, Tensor};

/// A mask of a test case. The values of an additive mask are random f32 numbers that are rounded to the
/// mask's dtype. A bool mask hides the keys whose random number is low.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaskCase {
    /// `Bool` or `F32`; `None` means the type of the heads.
    pub dtype: Option<Dtype>,
    /// One bool per dimension of `[B, H, Q, K]`: true if the mask has the full size in this dimension, false
    /// if it has size 1 there.
    pub full: [bool; 4],
}

/// The sizes, layouts and parameters of one call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionCase {
    /// Batches, queries, keys, query heads, key heads, head dimension.
    pub sizes: [usize; 6],
    /// The memory layouts of queries, keys, values and the result. All four layouts have the same order of
    /// dimensions (tokens first or heads first).
    pub layouts: [Layout; 4],
    pub params: Attention,
    pub mask: Option<MaskCase>,
    /// Factor by which the random queries are multiplied. With a large factor, one key gets nearly all the
    /// attention probability of a query.
    pub sharpness: f32,
}

impl AttentionCase {
    pub fn of(sizes: [usize; 6]) -> Self {
        let params = Attention::default();
        Self { sizes, layouts: [Layout::Dense; 4], params, mask: None, sharpness: 0.5 }
    }
    pub fn causal(self) -> Self {
        Self { params: Attention { causal: true, ..self.params }, ..self }
    }
    pub fn window(self, before: Option<u32>, after: Option<u32>) -> Self {
        Self { params: Attention { window: [before, after], ..self.params }, ..self }
    }
    pub fn masked(self, dtype: Option<Dtype>, full: [bool; 4]) -> Self {
        Self { mask: Some(MaskCase { dtype, full }), ..self }
    }
    pub fn laid_out(self, layout: Layout) -> Self {
        Self { layouts: [layout; 4], params: Attention { order: layout.order(), ..self.params }, ..self }
    }
    /// Changes the layout of one tensor only.
    pub fn laid_out_alone(mut self, tensor: usize, layout: Layout) -> Self {
        self.layouts[tensor] = layout;
        self
    }
    pub fn sharp(self, sharpness: f32) -> Self {
        Self { sharpness, ..self }
    }
}

/// The values of a mask in f64 for the reference, and the mask in device buffers for the kernels, one buffer
/// per dtype.
pub struct Mask {
    shape: [usize; 4],
    values: Vec<f64>,
    bytes: Buffer<u8>,
    single: Buffer<f32>,
    half: Half,
}
enum Half {
    F16(Buffer<half::f16>),
    Bf16(Buffer<half::bf16>),
}

impl Mask {
    pub fn random(device: &Device, case: &AttentionCase, mask: MaskCase, dtype: Dtype, seed: u64) -> Self {
        let [b, sq, sk, h, ..] = case.sizes;
        let all = [b, h, sq, sk];
        let shape: [usize; 4] = std::array::from_fn(|dim| if mask.full[dim] { all[dim] } else { 1 });
        let raw: Vec<f32> = values(&mut random(seed), shape.iter().product());
        let kind = mask.dtype.unwrap_or(dtype);
        let rounded = raw.iter().map(|&x| match kind {
            Dtype::Bool => f64::from(if x < -1.0 { f32::NEG_INFINITY } else { 0.0 }),
            Dtype::F32 => f64::from(x),
            Dtype::F16 => half::f16::from_f32(x).to_f64(),
            _ => half::bf16::from_f32(x).to_f64(),
        });
        let values: Vec<f64> = rounded.collect();
        let upload = "memory";
        let bytes: Vec<u8> = values.iter().map(|x| u8::from(*x == 0.0)).collect();
        let single: Vec<f32> = values.iter().map(|x| *x as f32).collect();
        let half = if dtype == Dtype::F16 {
            let values: Vec<_> = values.iter().map(|x| half::f16::from_f64(*x)).collect();
            Half::F16(device.upload(&values).expect(upload))
        } else {
            let values: Vec<_> = values.iter().map(|x| half::bf16::from_f64(*x)).collect();
            Half::Bf16(device.upload(&values).expect(upload))
        };
        let (bytes, single) = (device.upload(&bytes).expect(upload), device.upload(&single).expect(upload));
        Self { shape, values, bytes, single, half }
    }

    pub fn view(&self, dtype: Option<Dtype>) -> View<'_> {
        let shape = self.shape.map(|size| size as i64);
        match (dtype, &self.half) {
            (Some(Dtype::Bool), _) => self.bytes.view(&shape),
            (Some(_), _) => self.single.view(&shape),
            (None, Half::F16(half)) => half.view(&shape),
            (None, Half::Bf16(half)) => half.view(&shape),
        }
        .expect("dense")
    }

    fn at(&self, index: [usize; 4]) -> f64 {
        let flat = (0..4)
            .fold(0, |flat, dim| flat * self.shape[dim] + if self.shape[dim] == 1 { 0 } else { index[dim] });
        self.values[flat]
    }
}

/// Returns the scores of one query for all keys, in f64. The score of a key that the query does not attend to
/// is minus infinity.
pub fn scores(
    case: &AttentionCase,
    mask: Option<&Mask>,
    q: &[f64],
    k: &[f64],
    [b, i, h]: [usize; 3],
) -> Vec<f64> {
    let [_, sq, sk, heads, kv_heads, d] = case.sizes;
    let Attention { scale, causal, window: [before, after], softcap, .. } = case.params;
    let (g, here) = (h / (heads / kv_heads), i as i64 + sk as i64 - sq as i64);
    let row = &q[((b * sq + i) * heads + h) * d..][..d];
    let score = |j: usize| {
        let distance = j as i64 - here;
        let hidden = causal && distance > 0
            || before.is_some_and(|before| -distance > i64::from(before))
            || after.is_some_and(|after| distance > i64::from(after));
        if hidden {
            return f64::NEG_INFINITY;
        }
        let key = &k[((b * sk + j) * kv_heads + g) * d..][..d];
        let product: f64 = row.iter().zip(key).map(|(q, k)| q * k).sum();
        let score = product * scale.map_or(1.0 / (d as f64).sqrt(), f64::from);
        let score = softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
        score + mask.map_or(0.0, |mask| mask.at([b, h, i, j]))
    };
    (0..sk).map(score).collect()
}

/// A function that runs attention.
pub type Run = fn(&Device, AttentionInputs, ViewMut, Option<ViewMut>, Attention) -> Result<()>;

/// Runs the case and compares every element with f64.
pub fn check<T: Element>(device: &Device, case: &AttentionCase) {
    check_by::<T>(device, case, |device, inputs, out, lse, params| {
        attention(device, inputs, out, lse, params, Stream::default())
    });
}

/// Does the same as [`check`], but calls `run` instead of `attention`.
pub fn check_by<T: Element>(device: &Device, case: &AttentionCase, run: Run) {
    let (seed, [b, sq, sk, heads, kv_heads, d]) = (seed(), case.sizes);
    let mut rng = random(seed);
    let mut q: Vec<T> = values(&mut rng, b * sq * heads * d);
    q.iter_mut().for_each(|q| *q = T::from_f32(q.to_f32() * case.sharpness));
    let [k, v]: [Vec<T>; 2] = [(); 2].map(|()| values(&mut rng, b * sk * kv_heads * d));
    let [q_layout, k_layout, v_layout, out_layout] = case.layouts;
    let (queries, keys) = ([b, sq, heads, d], [b, sk, kv_heads, d]);
    let on_device = [
        Tensor::upload(device, &q, queries, q_layout),
        Tensor::upload(device, &k, keys, k_layout),
        Tensor::upload(device, &v, keys, v_layout),
    ];
    let mut out = Tensor::<T>::poisoned(device, queries, out_layout);
    let mut lse = device.upload(&vec![f32::NAN; b * heads * sq]).expect("memory");
    let mask = case.mask.map(|mask| Mask::random(device, case, mask, T::DTYPE, !seed));
    let [q_view, k_view, v_view] = on_device.each_ref().map(Tensor::view);
    let mask_view = mask.as_ref().map(|mask| mask.view(case.mask.expect("there is one").dtype));
    let inputs = AttentionInputs { q: q_view, k: k_view, v: v_view, mask: mask_view, cu_seqlens: None };
    let lse_view = lse.view_mut(&[b as i64, heads as i64, sq as i64]).expect("dense");
    run(device, inputs, out.view_mut(), Some(lse_view), case.params).expect("a launch");
    let (out, lse) = (out.download(), lse.download().expect("a kernel that ran"));
    let [q, k, v] = [wide(&q), wide(&k), wide(&v)];
    for (b, i, h) in (0..b).flat_map(|b| (0..sq).flat_map(move |i| (0..heads).map(move |h| (b, i, h)))) {
        let scores = scores(case, mask.as_ref(), &q, &k, [b, i, h]);
        let values = |j: usize| &v[((b * sk + j) * kv_heads + h / (heads / kv_heads)) * d..][..d];
        let got = &out[((b * sq + i) * heads + h) * d..][..d];
        let context = format!("{case:?}, seed {seed}, batch {b}, query {i}, head {h}");
        row_is_close(got, &scores, values, f64::from(lse[(b * heads + h) * sq + i]), &context);
    }
}

/// Compares `got`, the result of one query, with the result that follows from the query's scores in f64.
///
/// The kernel rounds each attention probability to the element type once, before the division by the row sum.
/// At this point, the largest probability of a row is 1, which needs no rounding. A score is an f32 sum of
/// products. In the largest tests, the error of the scores causes a relative error of the probabilities of
/// about 2^-18. In f16, probabilities below 2^-14 are subnormal, and have the absolute rounding error of
/// 2^-14.
pub fn row_is_close<'a, T: Element>(
    got: &[T],
    scores: &[f64],
    values: impl Fn(usize) -> &'a [f64],
    lse: f64,
    context: &str,
) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> =
        scores.iter().map(|s| if max == f64::NEG_INFINITY { 0.0 } else { (s - max).exp() }).collect();
    let sum: f64 = weights.iter().sum();
    let expected_lse = if sum == 0.0 { f64::NEG_INFINITY } else { max + sum.ln() };
    let close = lse == expected_lse || (lse - expected_lse).abs() <= 2e-5 * (1.0 + expected_lse.abs());
    assert!(close, "{context}: lse is {lse}, expected {expected_lse}");
    let unit = if T::DTYPE == Dtype::F16 { 2.0_f64.powi(-11) } else { 2.0_f64.powi(-8) };
    // For each column: the result, the sum of the magnitudes of its terms, and the same sum for the rounded
    // terms. The outer loop goes over the keys, so that each row of values is read only once.
    let mut sums = vec![[0.0; 3]; got.len()];
    for (j, &weight) in weights.iter().enumerate().filter(|&(_, &weight)| weight > 0.0) {
        for ([expected, size, rounded], value) in sums.iter_mut().zip(values(j)) {
            let part = weight * value;
            *expected += part;
            *size += part.abs();
            *rounded += if weight < 1.0 { part.abs() } else { 0.0 };
        }
    }
    for (column, (got, [mut expected, mut size, mut rounded])) in got.iter().zip(sums).enumerate() {
        let got = f64::from(got.to_f32());
        if sum > 0.0 {
            [expected, size, rounded] = [expected, size, rounded].map(|of_all| of_all / sum);
        }
        let small = if T::DTYPE == Dtype::F16 { scores.len() as f64 * 2.0_f64.powi(-23) } else { 0.0 };
        // Rounding may move the result into the next binade.
        let inner = rounded * unit + size * 1e-4 + small;
        let allowed = 0.5 * ulp(T::DTYPE, expected.abs() + inner) + inner;
        let right = (got - expected).abs() <= allowed;
        assert!(right, "{context}, column {column}: {got:e}, expected {expected:e} within {allowed:e}");
    }
}
