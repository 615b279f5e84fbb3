//! Compares the results of the kernel `transpose` with a plain loop, bit for bit.
mod common;

use common::{devices, f64_of, fails, succeeds, values};
use half::{bf16, f16};
use oxiwarp_kernel_templates::transpose::Transpose;
use oxiwarp_runtime::{Device, Element, Stream};

/// Number of unused rows after the output matrix, which the kernel must not write. A tile has the same number
/// of rows.
const GUARD: usize = 32;

/// Checks the kernel on a `[rows, cols]` matrix. In the input and in the output, `gap` unused elements follow
/// each row.
fn check<T: Element>(device: &Device, [rows, cols, gap]: [usize; 3]) {
    let (x_stride, y_stride) = (cols + gap, rows + gap);
    let x = values::<T>(rows * x_stride, 1, 1.0);
    // Before the call, the elements of the output matrix are NaN. The unused elements after each row and
    // after the matrix are 2, not NaN. On the CPU executor, shared memory that no thread has written contains
    // NaN. If the kernel stores such a NaN in an unused element, the 2 changes and the test fails.
    let inside = |at: usize| at % y_stride < rows && at / y_stride < cols;
    let before = |at| T::from_f32(if inside(at) { f32::NAN } else { 2.0 });
    let y: Vec<_> = (0..(cols + GUARD) * y_stride).map(before).collect();
    let (from, mut to) = (device.upload(&x).unwrap(), device.upload(&y).unwrap());
    let [r, c] = [rows as i64, cols as i64];
    let x_view = from.view_strided(0, &[r, c], &[x_stride as i64, 1]).unwrap();
    let y_view = to.view_strided_mut(0, &[c, r], &[y_stride as i64, 1]).unwrap();
    succeeds(Transpose::load(device).unwrap().run(x_view, y_view, Stream::default()));
    let y = to.download().unwrap();
    for col in 0..cols + GUARD {
        for row in 0..y_stride {
            let got = y[col * y_stride + row];
            let context = format!("{device:?}, {}, {rows} x {cols}, gap {gap}, y[{col}, {row}]", T::DTYPE);
            if row < rows && col < cols {
                assert_eq!(got, x[row * x_stride + col], "{context}");
            } else {
                assert_eq!(f64_of(got), 2.0, "{context}: written outside of the matrix");
            }
        }
    }
}

#[test]
fn every_element_moves() {
    for device in devices() {
        // The shapes cover one element, one row, one column, a whole tile, partial tiles, and several tiles
        // in both dimensions.
        for shape in [[1, 1, 0], [1, 100, 0], [100, 1, 3], [32, 32, 0], [33, 31, 5], [70, 129, 1]] {
            check::<f32>(&device, shape);
            check::<f16>(&device, shape);
            check::<bf16>(&device, shape);
        }
    }
}

#[test]
fn wrong_arguments_are_errors() {
    for device in devices() {
        let (x, mut y) = (device.upload(&[1.0_f32; 8]).unwrap(), device.alloc::<f32>(8).unwrap());
        let (op, stream) = (Transpose::load(&device).unwrap(), Stream::default());
        let wide = x.view(&[2, 4]).unwrap();
        let done = op.run(wide, y.view_mut(&[2, 4]).unwrap(), stream);
        fails(done, "transpose: y has shape [2, 4], expected [4, 2]");
        let same_row = y.view_strided_mut(0, &[4, 2], &[0, 1]).unwrap();
        let message =
            "transpose: y of shape [4, 2] has strides [0, 1]: the rows of an output must not overlap";
        fails(op.run(wide, same_row, stream), message);
        let mut half = device.alloc::<f16>(8).unwrap();
        fails(op.run(wide, half.view_mut(&[4, 2]).unwrap(), stream), "transpose: y is f16, expected f32");
    }
}
