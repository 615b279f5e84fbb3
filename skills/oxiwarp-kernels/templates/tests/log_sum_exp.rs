//! Compares the results of the kernel `log_sum_exp` with a computation in f64.
mod common;

use common::{U, devices, f64_of, fails, rounding, succeeds, values};
use half::{bf16, f16};
use oxiwarp_kernel_templates::log_sum_exp::LogSumExp;
use oxiwarp_runtime::{Device, Element, Stream};

/// Largest absolute value of the inputs.
const RANGE: f32 = 4.0;

/// Checks the kernel on `rows` rows of `cols` elements, with `gap` unused elements after each row.
fn check<T: Element>(device: &Device, [rows, cols, gap]: [usize; 3]) {
    let stride = cols + gap;
    let x = values::<T>(rows * stride, 1, RANGE);
    let (from, mut to) = (device.upload(&x).unwrap(), device.alloc::<T>(rows + 8).unwrap());
    let op = LogSumExp::load(device).unwrap();
    let x_view = from.view_strided(0, &[rows as i64, cols as i64], &[stride as i64, 1]).unwrap();
    succeeds(op.run(x_view, to.view_mut(&[rows as i64]).unwrap(), Stream::default()));
    let y = to.download().unwrap();
    for row in 0..rows {
        let sum = x[row * stride..][..cols].iter().map(|x| f64_of(*x).exp()).sum::<f64>();
        let (got, right) = (f64_of(y[row]), sum.ln());
        // Each term of the sum has the error of `exp` (4 U) and the error of its argument (at most 2 RANGE
        // U). A lane adds `cols / 32` terms, with one rounding each. The reductions within a pack (16-byte
        // vector) and within the warp have at most 10 further roundings.
        let relative_of_sum = (4.0 + 2.0 * f64::from(RANGE) + cols as f64 / 32.0 + 10.0) * U;
        // The error of `lg2` is at most 2^-22. For arguments near 1, this is the absolute error. For other
        // arguments, it is the relative error. Three more roundings follow: of the constant LN_2, of the
        // product with LN_2, and of the last sum.
        let log = 2.0_f64.powi(-22) * (cols as f64).ln().max(1.0) + 2.0 * U * (cols as f64).ln();
        let f32_error = relative_of_sum + log + U * right.abs();
        let allowed = f32_error + rounding::<T>(right.abs() + f32_error);
        let context = format!("{device:?}, {}, {rows} x {cols}, gap {gap}, row {row}", T::DTYPE);
        assert!((got - right).abs() <= allowed, "{context}: {got}, expected {right}");
    }
    assert!(y[rows..].iter().all(|y| f64_of(*y).is_nan()), "wrote past the output");
}

#[test]
fn results_are_those_of_the_formula() {
    for device in devices() {
        // The shapes cover rows with fewer columns than lanes, with one pack (16-byte vector), with whole
        // packs, and with an odd number of columns. They also cover rows of several tiles and unaligned rows.
        for shape in [[1, 1, 0], [3, 7, 0], [5, 8, 0], [9, 1000, 0], [6, 64, 1], [2, 4099, 0], [70, 512, 8]] {
            check::<f32>(&device, shape);
            check::<f16>(&device, shape);
            check::<bf16>(&device, shape);
        }
    }
}

#[test]
fn special_values_are_those_of_torch() {
    const INF: f32 = f32::INFINITY;
    for device in devices() {
        let rows =
            [[1.0, f32::NAN], [INF, 1.0], [-INF, -INF], [INF, -INF], [-INF, 2.0], [INF, f32::NAN], [1e30; 2]];
        let (x, mut y) = (device.upload(rows.as_flattened()).unwrap(), device.alloc::<f32>(7 + 8).unwrap());
        let op = LogSumExp::load(&device).unwrap();
        succeeds(op.run(x.view(&[7, 2]).unwrap(), y.view_mut(&[7]).unwrap(), Stream::default()));
        let got = y.download().unwrap();
        assert!(got[0].is_nan() && got[5].is_nan(), "{device:?}: {got:?}");
        assert_eq!((&got[1..5], got[6]), (&[INF, -INF, INF, 2.0][..], 1e30), "{device:?}");
        assert!(got[7..].iter().all(|y| y.is_nan()), "{device:?}: wrote past the output");
        // In a row without elements, the sum is 0, so its logarithm is -inf.
        succeeds(op.run(x.view(&[3, 0]).unwrap(), y.view_mut(&[3]).unwrap(), Stream::default()));
        let (before, after) = (got, y.download().unwrap());
        assert_eq!(after[..3], [-INF; 3], "{device:?}");
        let unchanged = before[3..].iter().zip(&after[3..]).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(unchanged, "{device:?}: wrote past the output");
    }
}

#[test]
fn wrong_arguments_are_errors() {
    for device in devices() {
        let (x, mut y) = (device.upload(&[1.0_f32; 8]).unwrap(), device.alloc::<f32>(8).unwrap());
        let (op, stream) = (LogSumExp::load(&device).unwrap(), Stream::default());
        let done = op.run(x.view(&[8]).unwrap(), y.view_mut(&[8]).unwrap(), stream);
        fails(done, "log_sum_exp: x has shape [8], expected [rows, columns]");
        let done = op.run(x.view(&[2, 4]).unwrap(), y.view_mut(&[4]).unwrap(), stream);
        fails(done, "log_sum_exp: y has shape [4], expected [2]");
        let mut half = device.alloc::<f16>(2).unwrap();
        let done = op.run(x.view(&[2, 4]).unwrap(), half.view_mut(&[2]).unwrap(), stream);
        fails(done, "log_sum_exp: y is f16, expected f32");
        let by_columns = x.view_strided(0, &[2, 2], &[1, 2]).unwrap();
        let done = op.run(by_columns, y.view_mut(&[2]).unwrap(), stream);
        fails(done, "log_sum_exp: x of shape [2, 2] has strides [1, 2]: columns must lie side by side");
    }
}
