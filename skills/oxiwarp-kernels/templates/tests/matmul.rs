//! Compares the results of the kernel `matmul` with a computation in f64.
mod common;

use common::{U, devices, f64_of, fails, rounding, succeeds, values};
use half::{bf16, f16};
use oxiwarp_kernel_templates::matmul::Matmul;
use oxiwarp_runtime::{Device, Element, Stream};

/// Number of unused rows after the output matrix, which the kernel must not write. A tile has the same number
/// of rows.
const GUARD: usize = 64;

/// Checks the product of an `[m, k]` matrix and the transpose of an `[n, k]` matrix. In each matrix, `gap`
/// unused elements follow each row.
fn check<T: Element>(device: &Device, [m, n, k, gap]: [usize; 4]) {
    let (stride, c_stride) = (k + gap, n + gap);
    let (a, b) = (values::<T>(m * stride, 1, 1.0), values::<T>(n * stride, 7, 1.0));
    let (from_a, from_b) = (device.upload(&a).unwrap(), device.upload(&b).unwrap());
    let mut to = device.alloc::<T>((m + GUARD) * c_stride).unwrap();
    let shape = |rows: usize, cols: usize| [rows as i64, cols as i64];
    let a_view = from_a.view_strided(0, &shape(m, k), &[stride as i64, 1]).unwrap();
    let b_view = from_b.view_strided(0, &shape(n, k), &[stride as i64, 1]).unwrap();
    let c_view = to.view_strided_mut(0, &shape(m, n), &[c_stride as i64, 1]).unwrap();
    succeeds(Matmul::load(device).unwrap().run(a_view, b_view, c_view, Stream::default()));
    let c = to.download().unwrap();
    for row in 0..m + GUARD {
        for col in 0..c_stride {
            let got = f64_of(c[row * c_stride + col]);
            let context = format!("{device:?}, {}, {m} x {n} x {k}, gap {gap}, c[{row}, {col}]", T::DTYPE);
            if row >= m || col >= n {
                assert!(got.is_nan(), "{context}: written outside of the matrix");
                continue;
            }
            let products = (0..k).map(|i| f64_of(a[row * stride + i]) * f64_of(b[col * stride + i]));
            let (right, size) = (products.clone().sum::<f64>(), products.map(f64::abs).sum::<f64>());
            // f32 represents products of these 16-bit elements exactly. Each of the `k` additions may
            // truncate its result. The error of an addition is then at most `2 * U * size`. `U` is the unit
            // roundoff of f32, and `size` is the sum of the absolute values of the products.
            let f32_error = 2.0 * U * k as f64 * size;
            let allowed = f32_error + rounding::<T>(right.abs() + f32_error);
            assert!((got - right).abs() <= allowed, "{context}: {got}, expected {right}");
        }
    }
}

#[test]
fn results_are_those_of_the_formula() {
    for device in devices() {
        if Matmul::load(&device).is_err() {
            continue; // The GPU is older than sm_80.
        }
        // The shapes cover one element, less than a tile, whole tiles and several tiles. They also cover
        // values of `k` that are not multiples of 8 or of 32.
        for shape in [
            [1, 1, 1, 0],
            [5, 9, 8, 0],
            [64, 64, 32, 0],
            [65, 130, 40, 0],
            [70, 33, 67, 0],
            [33, 70, 96, 8],
            [17, 3, 64, 1],
        ] {
            check::<bf16>(&device, shape);
            check::<f16>(&device, shape);
        }
    }
}

#[test]
fn a_product_without_columns_is_zero() {
    let device = Device::cpu();
    let (a, mut c) = (device.upload(&[bf16::ONE; 4]).unwrap(), device.alloc::<bf16>(6).unwrap());
    let op = Matmul::load(&device).unwrap();
    let (a, b) = (a.view(&[2, 0]).unwrap(), a.view(&[3, 0]).unwrap());
    succeeds(op.run(a, b, c.view_mut(&[2, 3]).unwrap(), Stream::default()));
    assert_eq!(c.download().unwrap(), [bf16::ZERO; 6]);
}

#[test]
fn wrong_arguments_are_errors() {
    let device = Device::cpu();
    let (x, mut c) = (device.upload(&[bf16::ONE; 8]).unwrap(), device.alloc::<bf16>(16).unwrap());
    let (op, stream) = (Matmul::load(&device).unwrap(), Stream::default());
    let a = x.view(&[2, 4]).unwrap();
    let done = op.run(a, x.view(&[4, 2]).unwrap(), c.view_mut(&[2, 4]).unwrap(), stream);
    fails(done, "matmul: b has shape [4, 2], expected [4, 4]");
    let done = op.run(a, a, c.view_mut(&[4, 4]).unwrap(), stream);
    fails(done, "matmul: c has shape [4, 4], expected [2, 2]");
    let floats = device.upload(&[1.0_f32; 8]).unwrap();
    let done = op.run(floats.view(&[2, 4]).unwrap(), a, c.view_mut(&[2, 2]).unwrap(), stream);
    fails(done, "matmul: a is f32, expected f16 or bf16");
}
