//! A test case of `cross_entropy`, compared with f64.
use oxiwarp::{CrossEntropy, Device, Element, Scalar, Stream, View, cross_entropy};
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};
use rand::Rng;
use rand::rngs::StdRng;

use super::rms_norm_case::AnyWeight;

/// Sets of parameters. The first set is torch's defaults. The other sets have label smoothing, label
/// smoothing and z-loss, a softcap (`cap * tanh(x / cap)`), or all three.
pub const KINDS: [CrossEntropy; 5] = [
    CrossEntropy { ignore_index: -100, label_smoothing: 0.0, z_loss: 0.0, softcap: 0.0 },
    CrossEntropy { ignore_index: 0, label_smoothing: 0.1, z_loss: 0.0, softcap: 0.0 },
    CrossEntropy { ignore_index: -1, label_smoothing: 0.25, z_loss: 1e-3, softcap: 0.0 },
    CrossEntropy { ignore_index: -100, label_smoothing: 0.0, z_loss: 0.0, softcap: 30.0 },
    CrossEntropy { ignore_index: -1, label_smoothing: 0.1, z_loss: 1e-3, softcap: 0.75 },
];

/// Returns the logits `x` with the softcap of `params`, and the error bound of each, in units of 2^-23. The
/// product `x / softcap` and the function `tanh` have a relative error of 4 units.
pub fn capped(x: &[f64], params: CrossEntropy) -> (Vec<f64>, f64) {
    if params.softcap == 0.0 {
        return (x.to_vec(), 0.0);
    }
    let cap = f64::from(params.softcap);
    let x: Vec<f64> = x.iter().map(|x| cap * (x / cap).tanh()).collect();
    let largest = x.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    (x, 4.0 * largest)
}

/// The weights of all classes, as an operand and in f64.
pub struct ClassWeights<T> {
    operand: AnyWeight<T>,
    pub wide: Vec<f64>,
}

impl<T: Element> ClassWeights<T> {
    /// Returns random weights, with or without an alignment of 16 bytes. One weight in about ten is 0.
    pub fn random(device: &Device, random: &mut StdRng, cols: i64, single: bool, aligned: bool) -> Self {
        fn draw<E: Element>(random: &mut StdRng, cols: i64) -> Vec<E> {
            let weights: Vec<E> = values(random, cols as usize);
            let positive = |weight: &E| weight.to_f32().abs();
            weights
                .iter()
                .map(|weight| E::from_f32(if positive(weight) < 0.1 { 0.0 } else { positive(weight) }))
                .collect()
        }
        let layout = Layout { offset: if aligned { 0 } else { 1 }, stride: cols };
        if single {
            let weights: Vec<f32> = draw(random, cols);
            let operand = AnyWeight::F32(Matrix::upload(device, &weights, [1, cols], layout));
            return Self { operand, wide: wide(&weights) };
        }
        let weights: Vec<T> = draw(random, cols);
        let operand = AnyWeight::Same(Matrix::upload(device, &weights, [1, cols], layout));
        Self { operand, wide: wide(&weights) }
    }

    pub fn view(&self) -> View<'_> {
        self.operand.view()
    }
}

/// Returns each set of parameters twice: without weights of the classes, and with weights. The weights have
/// the element type or f32 in turns.
pub fn cases<T: Element>(
    device: &Device,
    random: &mut StdRng,
    cols: i64,
) -> Vec<(CrossEntropy, Option<ClassWeights<T>>)> {
    let mut cases: Vec<_> = KINDS.into_iter().map(|params| (params, None)).collect();
    for (at, params) in KINDS.into_iter().enumerate() {
        cases.push((params, Some(ClassWeights::random(device, random, cols, at % 2 == 0, at < 4))));
    }
    cases
}

/// Returns the losses and the `lse` of all rows.
pub fn run<T: Element, I: Scalar>(
    device: &Device,
    x: &Matrix<T>,
    target: &[I],
    weight: Option<&ClassWeights<T>>,
    params: CrossEntropy,
) -> [Vec<f32>; 2] {
    let rows = [target.len() as i64];
    let target = device.upload(target).unwrap();
    let [mut loss, mut lse] = [(); 2].map(|()| device.alloc::<f32>(rows[0] as usize).unwrap());
    let (target, stream) = (target.view(&rows).unwrap(), Stream::default());
    let results = (loss.view_mut(&rows).unwrap(), lse.view_mut(&rows).unwrap());
    let weight = weight.map(ClassWeights::view);
    cross_entropy(device, x.view(), target, weight, results.0, results.1, params, stream)
        .expect("valid arguments");
    [loss, lse].map(|values| values.download().unwrap())
}

/// Returns a target class for each row. About one row in eight gets the class `ignored`, and the other rows
/// get random classes.
pub fn classes(random: &mut impl Rng, rows: i64, cols: i64, ignored: i64) -> Vec<i64> {
    (0..rows)
        .map(|_| if random.random_range(0..8) == 0 { ignored } else { random.random_range(0..cols) })
        .collect()
}

/// Computes the loss and the log-sum-exp (`lse`) of one row in f64, each with its error bound.
///
/// One unit of error is 2^-23. The sum of exponentials has a relative error of 4 units. The logarithm of the
/// sum adds a relative error of 2 units. Each subtraction adds half a unit, relative to its result. The mean
/// of the logits adds 8 units, relative to the mean of their magnitudes. With weights of the classes, this is
/// the mean of the products, and the mean of the weights also has an error of 8 units.
pub fn expected(x: &[f64], target: i64, weight: Option<&[f64]>, params: CrossEntropy) -> [(f64, f64); 2] {
    let (x, off_x) = capped(x, params);
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = x.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
    let (lse, cols) = (max + log_sum, x.len() as f64);
    let of = |class: usize| weight.map_or(1.0, |weight| weight[class]);
    let mean_of = |value: &dyn Fn(usize) -> f64| (0..x.len()).map(value).sum::<f64>() / cols;
    let (mean, size) = (mean_of(&|c| of(c) * x[c]), mean_of(&|c| of(c) * x[c].abs()));
    let mean_weight = mean_of(&of);
    let [smoothing, z] = [params.label_smoothing, params.z_loss].map(f64::from);
    let off_lse = 4.0 + 2.0 * log_sum + lse.abs() + off_x;
    let (mut loss, mut off) = (0.0, 0.0);
    if target != params.ignore_index {
        let (hit, of_target) = (x[target as usize], of(target as usize));
        let of_hit = (1.0 - smoothing) * (lse - hit) + z * lse * lse;
        let others = mean_weight * lse - mean;
        loss = of_target * of_hit + smoothing * others;
        let largest = of_target.max(smoothing * mean_weight);
        off = largest * (4.0 + 2.0 * log_sum + (max - hit) + 2.0 * off_x);
        off += 2.0 * (of_target * of_hit.abs() + smoothing * others.abs());
        off += smoothing * (8.0 * size + mean_weight * max.abs()) + 4.0 * z * of_target * lse.abs() * off_lse;
        if weight.is_some() {
            off += 8.0 * smoothing * mean_weight * (log_sum + max.abs());
        }
    }
    [(loss, off), (lse, off_lse)].map(|(value, off)| (value, off * f64::from(f32::EPSILON)))
}

/// Checks one shape and layout, with every set of parameters and with targets in i64 and in i32.
pub fn check<T: Element>(device: &Device, seed: u64, [rows, cols]: [i64; 2], layout: Layout) {
    let random = &mut random(seed);
    let x: Vec<T> = values(random, (rows * cols) as usize);
    let matrix = Matrix::upload(device, &x, [rows, cols], layout);
    for (params, weight) in cases::<T>(device, random, cols) {
        let (weight, wide_weight) = (weight.as_ref(), weight.as_ref().map(|weight| &weight.wide[..]));
        let target = classes(random, rows, cols, params.ignore_index);
        let short: Vec<i32> = target.iter().map(|&class| class as i32).collect();
        let results = run(device, &matrix, &target, weight, params);
        for (one, other) in results.iter().zip(run(device, &matrix, &short, weight, params)) {
            same_bits(&other, one);
        }
        for (row, x) in wide(&x).chunks(cols as usize).enumerate() {
            for (got, (right, allowed)) in results.iter().zip(expected(x, target[row], wide_weight, params)) {
                let off = (f64::from(got[row]) - right).abs();
                assert!(
                    off <= allowed,
                    "row {row}: {}, expected {right} within {allowed:e}, {params:?}, weights: {}",
                    got[row],
                    weight.is_some()
                );
            }
        }
    }
}
