//! A test case of `softmax`, compared with f64.
use std::f64::consts::{LN_2, LOG2_E};

use oxiwarp::{Device, Dtype, Element, Stream, softmax};
use oxiwarp_tests::compare::ulp;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

/// Computes the formula in f64, or its logarithm.
pub fn reference(x: &[f64], cols: usize, log: bool) -> Vec<f64> {
    let row = |row: &[f64]| {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
        let one = |x: &f64| if log { x - max - sum.ln() } else { (x - max).exp() / sum };
        row.iter().map(one).collect::<Vec<_>>()
    };
    x.chunks(cols).flat_map(row).collect()
}

/// Panics if the error of a value exceeds the bound for f32 arithmetic with one rounding to the element type.
///
/// Errors are relative to the result, and one unit is 2^-23:
/// - The difference `x - max` has an error of up to `|x - max| / 2` units. The sum of exponentials has an
///   error of 3 units.
/// - For an f32 result, the exponential adds an error of 3 units. The reciprocal of the sum and the product
///   with it add 0.5 units each.
/// - For a 16-bit result, the kernel computes `ex2.approx` of the binary logarithm of the result.
///   `ex2.approx` adds an error of 2 units. The logarithm has an error of half an ulp. This logarithm
///   contains `log2(sum)` from `lg2.approx`, with an error of 2 ulp, or of 2^-22 if the sum is at most 2
///   (CUDA C++ Programming Guide, `__log2f`). The rounding of the result to 16 bits adds its own error.
/// - In `log_softmax`, the errors of the difference and of the sum are absolute errors. The logarithm of the
///   sum adds 2 units, and the last rounding adds 0.5 units. These two errors are relative to the result.
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
                    // Converts an absolute error of the argument of `ex2` into a relative error of its
                    // result, in units of 2^-23.
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

/// Checks one shape and layout, for softmax and for its logarithm.
pub fn check<T: Element>(device: &Device, seed: u64, shape: [i64; 2], layouts: [Layout; 2]) {
    let cols = shape[1] as usize;
    let x: Vec<T> = values(&mut random(seed), shape[0] as usize * cols);
    for log in [false, true] {
        close(&run(device, &x, shape, layouts, log), &wide(&x), cols, log);
    }
}
