//! A case of `softmax`, against f64.
use std::f64::consts::{LN_2, LOG2_E};

use oxiwarp::{Device, Dtype, Element, Stream, softmax};
use oxiwarp_tests::compare::ulp;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

/// The formula, in f64, and its logarithm.
pub fn reference(x: &[f64], cols: usize, log: bool) -> Vec<f64> {
    let row = |row: &[f64]| {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
        let one = |x: &f64| if log { x - max - sum.ln() } else { (x - max).exp() / sum };
        row.iter().map(one).collect::<Vec<_>>()
    };
    x.chunks(cols).flat_map(row).collect()
}

/// Panics unless every value is as near to its reference as f32 arithmetic with one rounding gets.
///
/// A 16-bit result is off by its rounding too. In units of 2^-23 of the result: up to 0.5 of `|x - max|` for
/// the subtraction, 3 for the sum of exponentials, and for f32 3 for the exponential, 0.5 each for the sum's
/// reciprocal and the product. In 16 bits the sum's logarithm is in the exponent: 2 for `ex2.approx`; half an
/// ulp of its argument, `log2(y)`; and 2 ulp of `log2(sum)`, or 2^-22 where the sum is 2 or less, for
/// `lg2.approx` (CUDA C++ Programming Guide, `__log2f`). A logarithm has the absolute errors of its terms:
/// those of the difference and the sum, 2 of the logarithm of the sum, which is smaller than the result, and
/// 0.5 of the result.
#[track_caller]
pub fn close<T: Element>(got: &[T], x: &[f64], cols: usize, log: bool) {
    for (r, (x, got)) in x.chunks(cols).zip(got.chunks(cols)).enumerate() {
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let expected = reference(x, cols, log);
        for (c, (&expected, got)) in expected.iter().zip(got).enumerate() {
            let got = f64::from(got.to_f32());
            let (from_max, is_f32) = (max - x[c], size_of::<T>() == 4);
            let (unit, own) = match (log, is_f32) {
                (true, _) => (1.0, 2.5 * expected.abs()),
                (false, true) => (expected, 4.0),
                (false, false) => {
                    // What errors of a power of 2 are of the result, in these units.
                    let units = |error: f64| error * LN_2 / f64::from(f32::EPSILON);
                    let exponent = -expected.max(f64::MIN_POSITIVE).log2();
                    let sum = 2.0 * ulp(Dtype::F32, exponent - from_max * LOG2_E);
                    (expected, 2.0 + units(0.5 * ulp(Dtype::F32, exponent) + sum.max((-22f64).exp2())))
                }
            };
            let single = f64::from(f32::EPSILON) * unit * (3.0 + own + 0.5 * from_max);
            let rounding = if is_f32 { 0.0 } else { 0.5 * ulp(T::DTYPE, expected) };
            let allowed = single + rounding + f64::from(f32::MIN_POSITIVE);
            let right = got == expected || (got - expected).abs() <= allowed;
            assert!(right, "row {r}, column {c}: {got:e}, expected {expected:e} within {allowed:e}");
        }
    }
}

pub fn run<T: Element>(
    device: &Device,
    x: &[T],
    shape: [i64; 2],
    [layout_x, layout_y]: [Layout; 2],
    log: bool,
) -> Vec<T> {
    let x = Matrix::upload(device, x, shape, layout_x);
    let mut y = Matrix::<T>::poisoned(device, shape, layout_y);
    softmax(device, x.view(), y.view_mut(), log, Stream::default()).expect("valid arguments");
    y.download()
}

/// One shape and layout, and both results.
pub fn check<T: Element>(device: &Device, seed: u64, shape: [i64; 2], layouts: [Layout; 2]) {
    let cols = shape[1] as usize;
    let x: Vec<T> = values(&mut random(seed), shape[0] as usize * cols);
    for log in [false, true] {
        close(&run(device, &x, shape, layouts, log), &wide(&x), cols, log);
    }
}
