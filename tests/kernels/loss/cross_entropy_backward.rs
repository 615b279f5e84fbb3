//! Compares `cross_entropy_backward` with f64 results. The op gets the log-sum-exp (`lse`) that the forward
//! op `cross_entropy` computed.
use half::{bf16, f16};
use oxiwarp::{CrossEntropy, Device, Element, Stream, cross_entropy_backward};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, ulp};
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use crate::support::cross_entropy_case::{
    self as cross_entropy, ClassWeights, KINDS, capped, cases, classes,
};
use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("cross_entropy_backward::f32_against_f64", against_f64::<f32>),
    ("cross_entropy_backward::f16_against_f64", against_f64::<f16>),
    ("cross_entropy_backward::bf16_against_f64", against_f64::<bf16>),
    ("cross_entropy_backward::layouts", layouts),
    ("cross_entropy_backward::every_column_can_be_the_target", every_column),
    ("cross_entropy_backward::rows_do_not_depend_on_each_other", batch_invariance),
    ("cross_entropy_backward::ignored_and_wrong_targets", targets),
    ("cross_entropy_backward::bad_input", refuses),
];

fn run<T: Element>(
    device: &Device,
    x: &Matrix<T>,
    target: &[i64],
    weight: Option<&ClassWeights<T>>,
    dloss: &[f32],
    layout: Layout,
    params: CrossEntropy,
) -> Vec<T> {
    let rows = [target.len() as i64];
    let [_, lse] = cross_entropy::run(device, x, target, weight, params);
    let (lse, dloss) = (device.upload(&lse).unwrap(), device.upload(dloss).unwrap());
    let target = device.upload(target).unwrap();
    let mut dx = Matrix::<T>::poisoned(device, x.shape, layout);
    let [lse, dloss] = [&lse, &dloss].map(|values| values.view(&rows).unwrap());
    let (target, weight, stream) =
        (target.view(&rows).unwrap(), weight.map(ClassWeights::view), Stream::default());
    cross_entropy_backward(device, x.view(), target, weight, lse, dloss, dx.view_mut(), params, stream)
        .expect("valid arguments");
    dx.download()
}

/// Computes the gradient of one row in f64, with an error bound for each element.
///
/// One unit of error is 2^-23. The log-sum-exp `lse` has an absolute error of `4 + 2 |lse|` units. The
/// relative error of `exp(x - lse)` is this error plus `|x - lse| / 2 + 3` units. Each product and each
/// difference adds a relative error of half a unit.
/// With weights of the classes, the mean of the weights has an error of 8 units.
fn expected<T: Element>(
    x: &[f64],
    target: i64,
    weight: Option<&[f64]>,
    dloss: f64,
    params: CrossEntropy,
) -> Vec<(f64, f64)> {
    let (wide, (x, off_x)) = (x, capped(x, params));
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lse = max + x.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
    let cols = x.len() as f64;
    let [smoothing, z] = [params.label_smoothing, params.z_loss].map(f64::from);
    let of = |class: usize| weight.map_or(1.0, |weight| weight[class]);
    let mean_weight = (0..x.len()).map(of).sum::<f64>() / cols;
    let one = |(column, &x): (usize, &f64)| {
        if target == params.ignore_index {
            return (0.0, 0.0);
        }
        let of_target = of(target as usize);
        let factor = of_target * (1.0 - smoothing + 2.0 * z * lse) + smoothing * mean_weight;
        let grown = (x - lse).exp() * factor;
        let hot = f64::from(column as i64 == target) * (1.0 - smoothing) * of_target;
        let shift = of(column) * smoothing / cols;
        let slope = match f64::from(params.softcap) {
            0.0 => 1.0,
            cap => 1.0 - (wide[column] / cap).tanh().powi(2),
        };
        let dx = dloss * (grown - shift - hot) * slope;
        let mut off = grown * (9.0 + 3.0 * lse.abs() + 0.5 * (x - lse).abs()) + 2.0 * (shift + hot);
        if weight.is_some() {
            off += 8.0 * grown + shift;
        }
        // The derivative of the softcap has an absolute error of 9 units: twice that of `tanh`, and a
        // rounding.
        let of_slope = if params.softcap == 0.0 { 0.0 } else { 9.0 * (grown + shift + hot) };
        let off = off * slope + 2.0 * off_x * grown * slope + of_slope;
        let rounding = if size_of::<T>() == 4 { 0.0 } else { 0.5 * ulp(T::DTYPE, dx) };
        (dx, (dloss * off).abs() * f64::from(f32::EPSILON) + rounding + f64::from(f32::MIN_POSITIVE))
    };
    x.iter().enumerate().map(one).collect()
}

fn check<T: Element>(device: &Device, seed: u64, [rows, cols]: [i64; 2], [read, write]: [Layout; 2]) {
    let random = &mut random(seed);
    let x: Vec<T> = values(random, (rows * cols) as usize);
    let dloss: Vec<f32> = values(random, rows as usize);
    let matrix = Matrix::upload(device, &x, [rows, cols], read);
    for (params, weight) in cases::<T>(device, random, cols) {
        let (weight, wide_weight) = (weight.as_ref(), weight.as_ref().map(|weight| &weight.wide[..]));
        let target = classes(random, rows, cols, params.ignore_index);
        let dx = run(device, &matrix, &target, weight, &dloss, write, params);
        for (row, (x, dx)) in wide(&x).chunks(cols as usize).zip(dx.chunks(cols as usize)).enumerate() {
            let right = expected::<T>(x, target[row], wide_weight, f64::from(dloss[row]), params);
            for (column, (dx, (right, allowed))) in dx.iter().zip(right).enumerate() {
                let off = (f64::from(dx.to_f32()) - right).abs();
                let what = format!("row {row}, target {}, column {column}", target[row]);
                assert!(off <= allowed, "{what}: {dx:?}, expected {right:e} within {allowed:e}, {params:?}");
            }
        }
    }
}

fn against_f64<T: Element>(device: &Device) {
    let seed = seed();
    for shape in shapes() {
        case!("{} x {} ({})", shape.rows, shape.cols, shape.why);
        check::<T>(device, seed, [shape.rows, shape.cols], [Layout::dense(shape.cols); 2]);
    }
}

fn layouts(device: &Device) {
    let seed = seed();
    for cols in [7, 129, 2048, 5000] {
        let dense = Layout::dense(cols);
        for odd in [Layout { offset: 8, stride: cols + 8 }, Layout { offset: 3, stride: cols + 1 }] {
            for layouts in [[dense, odd], [odd, dense], [odd, odd]] {
                case!("{cols} columns, {layouts:?}");
                check::<bf16>(device, seed, [6, cols], layouts);
                check::<f32>(device, seed, [6, cols], layouts);
            }
        }
    }
}

/// Tests target classes in different columns. The gradient of the target's column contains `- 1`, and only
/// the thread that processes this column may subtract it. Some row lengths allow 16-byte accesses, and others
/// allow only accesses of single elements.
fn every_column(device: &Device) {
    for cols in [1_i64, 9, 40, 257, 264, 4104] {
        let target: Vec<i64> = (0..cols.min(300)).map(|row| cols - 1 - row).collect();
        let rows = target.len() as i64;
        let x: Vec<f16> = vec![f16::ZERO; (rows * cols) as usize];
        let matrix = Matrix::upload(device, &x, [rows, cols], Layout::dense(cols));
        let dloss = vec![1.0; rows as usize];
        let dx = run(device, &matrix, &target, None, &dloss, Layout::dense(cols), CrossEntropy::default());
        for (row, dx) in dx.chunks(cols as usize).enumerate() {
            let hot: Vec<usize> = (0..dx.len()).filter(|&c| dx[c] <= f16::ZERO).collect();
            assert_eq!(hot, [target[row] as usize], "{cols} columns");
        }
    }
}

fn batch_invariance(device: &Device) {
    for cols in [5_usize, 128, 3072, 50_257] {
        let rows = if cols > 10_000 { 7 } else { 300 };
        let random = &mut random(seed());
        let x: Vec<bf16> = values(random, rows * cols);
        let dloss: Vec<f32> = values(random, rows);
        let target = classes(random, rows as i64, cols as i64, 0);
        let dense = Layout::dense(cols as i64);
        let weight = ClassWeights::random(device, random, cols as i64, true, true);
        let gradient = |x: &[bf16], target: &[i64], dloss: &[f32]| {
            let matrix = Matrix::upload(device, x, [target.len() as i64, cols as i64], dense);
            run(device, &matrix, target, Some(&weight), dloss, dense, KINDS[1])
        };
        let all = gradient(&x, &target, &dloss);
        for row in [0, 1, rows - 1] {
            let own = row * cols..(row + 1) * cols;
            same_bits(&gradient(&x[own.clone()], &target[row..=row], &dloss[row..=row]), &all[own]);
        }
    }
}

/// Tests ignored and invalid targets. A row whose target is ignored has gradient 0, even if its logits are
/// NaN. If the target is a class that does not exist, the gradient of the row is NaN.
fn targets(device: &Device) {
    for cols in [5_usize, 40, 3000] {
        let mut x = vec![1.0_f32; 5 * cols];
        x[..cols].fill(f32::NAN);
        let layout = Layout { offset: 3, stride: cols as i64 + 2 };
        let matrix = Matrix::upload(device, &x, [5, cols as i64], layout);
        let target = [-100, 4, -1, cols as i64, i64::MIN];
        let dx = run(device, &matrix, &target, None, &[1.0; 5], layout, CrossEntropy::default());
        assert!(dx[..cols].iter().all(|&dx| dx == 0.0), "ignored");
        let right = |c: usize| 1.0 / cols as f32 - f32::from(u8::from(c == 4));
        assert!((0..cols).all(|c| (dx[cols + c] - right(c)).abs() < 1e-6), "{:?}", &dx[cols..2 * cols]);
        assert!(dx[2 * cols..].iter().all(|dx| dx.is_nan()), "no such class");
    }
}

fn refuses(device: &Device) {
    let (x, kept) = (device.upload(&[1.0_f32; 64]).unwrap(), device.upload(&[1.0_f32; 4]).unwrap());
    let half = device.upload(&[f16::ONE; 64]).unwrap();
    let target = device.upload(&[1_i64; 4]).unwrap();
    let mut dx = device.alloc::<f32>(64).unwrap();
    let plain = CrossEntropy::default();
    let mut run = |lse, dloss, params| {
        let (x, target) = (x.view(&[4, 16]).unwrap(), target.view(&[4]).unwrap());
        let dx = dx.view_mut(&[4, 16]).unwrap();
        cross_entropy_backward(device, x, target, None, lse, dloss, dx, params, Stream::default())
    };
    let (good, short) = (kept.view(&[4]).unwrap(), kept.view(&[3]).unwrap());
    says(run(short, good, plain), "cross_entropy_backward: lse has shape [3], expected [4]");
    says(run(good, half.view(&[4]).unwrap(), plain), "cross_entropy_backward: dloss is f16, expected f32");
    let repeated = kept.view_strided(0, &[4], &[0]).unwrap();
    says(run(good, repeated, plain), "dloss of shape [4] has strides [0]: it must be contiguous");
    let smoothed = CrossEntropy { label_smoothing: 2.0, ..plain };
    says(run(good, good, smoothed), "cross_entropy_backward: label_smoothing is 2, expected 0 to 1");
    run(good, good, plain).expect("it still works");
    assert!(dx.download().unwrap().iter().all(|dx| !dx.is_nan()));
}
