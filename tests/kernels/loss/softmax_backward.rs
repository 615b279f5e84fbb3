//! Compares `softmax_backward` with f64 results. The input `y` is an f64 softmax that is rounded to the
//! element type, because the forward op also rounds its result.
use half::{bf16, f16};
use oxiwarp::{Device, Element, Stream, View, softmax_backward};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, ulp};
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use crate::support::errors::says;
use crate::support::softmax_case::reference;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("softmax_backward::f32_against_f64", against_f64::<f32>),
    ("softmax_backward::f16_against_f64", against_f64::<f16>),
    ("softmax_backward::bf16_against_f64", against_f64::<bf16>),
    ("softmax_backward::layouts", layouts),
    ("softmax_backward::rows_do_not_depend_on_each_other", batch_invariance),
    ("softmax_backward::bad_input", refuses),
];

fn run<T: Element>(
    device: &Device,
    [y, dy]: [&[T]; 2],
    shape: [i64; 2],
    layouts: [Layout; 3],
    log: bool,
) -> Vec<T> {
    let (y, dy) =
        (Matrix::upload(device, y, shape, layouts[0]), Matrix::upload(device, dy, shape, layouts[1]));
    let mut dx = Matrix::<T>::poisoned(device, shape, layouts[2]);
    softmax_backward(device, y.view(), dy.view(), dx.view_mut(), log, Stream::default()).expect("valid");
    dx.download()
}

/// Computes the gradient of one row in f64, with an error bound for each element. The bound allows for f32
/// arithmetic and one rounding to the element type.
///
/// One unit of error is 2^-23. The sum over the row has an error of 8 units, relative to the sum of the
/// magnitudes of its terms. The result contains this error multiplied by `y`, or by `exp(y)` for
/// `log_softmax`. `exp(y)` itself has a relative error of `3 + |y| / 2` units. Each further step adds a
/// relative error of half a unit.
fn expected<T: Element>(y: &[f64], dy: &[f64], log: bool) -> Vec<(f64, f64)> {
    let terms: Vec<f64> = y.iter().zip(dy).map(|(y, dy)| if log { *dy } else { y * dy }).collect();
    let (sum, size): (f64, f64) = (terms.iter().sum(), terms.iter().map(|term| term.abs()).sum());
    let one = |(y, dy): (&f64, &f64)| {
        let (factor, off) = if log { (y.exp(), 3.0 + 0.5 * y.abs()) } else { (*y, 0.5) };
        let dx = if log { dy - factor * sum } else { factor * (dy - sum) };
        let single = factor * (8.0 * size + off * (sum.abs() + dy.abs())) + dx.abs();
        let rounding = if size_of::<T>() == 4 { 0.0 } else { 0.5 * ulp(T::DTYPE, dx) };
        (dx, single * f64::from(f32::EPSILON) + rounding + f64::from(f32::MIN_POSITIVE))
    };
    y.iter().zip(dy).map(one).collect()
}

fn check<T: Element>(device: &Device, seed: u64, shape: [i64; 2], layouts: [Layout; 3]) {
    let (random, cols) = (&mut random(seed), shape[1] as usize);
    let x: Vec<T> = values(random, shape[0] as usize * cols);
    let dy: Vec<T> = values(random, x.len());
    for log in [false, true] {
        let y: Vec<T> = reference(&wide(&x), cols, log).iter().map(|&y| T::from_f32(y as f32)).collect();
        let dx = run(device, [&y, &dy], shape, layouts, log);
        let (y, dy) = (wide(&y), wide(&dy));
        for row in 0..shape[0] as usize {
            let row = row * cols..(row + 1) * cols;
            let right = expected::<T>(&y[row.clone()], &dy[row.clone()], log);
            for (at, (dx, (right, allowed))) in dx[row].iter().zip(right).enumerate() {
                let off = (f64::from(dx.to_f32()) - right).abs();
                assert!(
                    off <= allowed,
                    "column {at}: {dx:?}, expected {right:e} within {allowed:e}, log {log}"
                );
            }
        }
    }
}

fn against_f64<T: Element>(device: &Device) {
    let seed = seed();
    for shape in shapes() {
        case!("{} x {} ({})", shape.rows, shape.cols, shape.why);
        check::<T>(device, seed, [shape.rows, shape.cols], [Layout::dense(shape.cols); 3]);
    }
}

fn layouts(device: &Device) {
    let seed = seed();
    for cols in [7, 129, 2048] {
        let dense = Layout::dense(cols);
        for odd in [Layout { offset: 8, stride: cols + 8 }, Layout { offset: 3, stride: cols + 1 }] {
            for layouts in [[dense, odd, dense], [odd, dense, dense], [dense, dense, odd], [odd; 3]] {
                case!("{cols} columns, {layouts:?}");
                check::<bf16>(device, seed, [6, cols], layouts);
                check::<f32>(device, seed, [6, cols], layouts);
            }
        }
    }
}

fn batch_invariance(device: &Device) {
    for cols in [5_usize, 128, 3072, 40_000] {
        let rows = if cols > 10_000 { 7 } else { 300 };
        let random = &mut random(seed());
        let (y, dy): (Vec<f16>, Vec<f16>) = (values(random, rows * cols), values(random, rows * cols));
        let dense = [Layout::dense(cols as i64); 3];
        let all = run(device, [&y, &dy], [rows as i64, cols as i64], dense, false);
        for row in [0, 1, rows - 1] {
            let row = row * cols..(row + 1) * cols;
            let alone = run(device, [&y[row.clone()], &dy[row.clone()]], [1, cols as i64], dense, false);
            same_bits(&alone, &all[row]);
        }
    }
}

fn refuses(device: &Device) {
    let y = device.upload(&[0.5_f32; 64]).unwrap();
    let half = device.upload(&[f16::ONE; 64]).unwrap();
    let mut dx = device.alloc::<f32>(64).unwrap();
    let mut refuses = |dy: View, text: &str| {
        let (y, dx) = (y.view(&[4, 16]).unwrap(), dx.view_mut(&[4, 16]).unwrap());
        says(softmax_backward(device, y, dy, dx, false, Stream::default()), text);
    };
    refuses(y.view(&[2, 16]).unwrap(), "softmax_backward: dy has shape [2, 16], expected [4, 16]");
    refuses(half.view(&[4, 16]).unwrap(), "softmax_backward: dy is f16, expected f32");
    let repeated = y.view_strided(0, &[4, 16], &[16, 0]).unwrap();
    refuses(repeated, "softmax_backward: dy of shape [4, 16] has strides [16, 0]: its last dimension");
    assert!(dx.download().unwrap().iter().all(|dx| dx.is_nan()), "something was written");
    let (rows, out) = (y.view(&[4, 16]).unwrap(), dx.view_mut(&[4, 16]).unwrap());
    softmax_backward(device, rows, rows, out, false, Stream::default()).expect("it still works");
}
