//! Compares the results of the kernel `l2_normalize` with a computation in f64. The kernel runs on the CPU
//! executor, and also on a GPU if there is one.
use half::bf16;
use own_kernel::L2Normalize;
use oxiwarp_runtime::{Device, Element, Stream};

const EPS: f32 = 1e-3;

fn devices() -> impl Iterator<Item = Device> {
    [Some(Device::cpu()), Device::cuda(0).ok()].into_iter().flatten()
}

/// Returns `len` pseudo-random values from -1 to 1.
fn values<T: Element>(len: usize) -> Vec<T> {
    (0..len as u32)
        .map(|i| T::from_f32((i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0))
        .collect()
}

/// Checks the kernel on `rows` rows of `cols` elements, with `gap` unused elements after each row. The
/// relative error of a result may be at most `max`.
fn check<T: Element>(device: &Device, [rows, cols, gap]: [usize; 3], max: f64) {
    let stride = cols + gap;
    let mut x = values::<T>(rows * stride);
    x[..cols].fill(T::from_f32(0.0));
    let from = device.upload(&x).unwrap();
    let mut to = device.alloc::<T>(rows * stride).unwrap();
    let (shape, strides) = ([rows as i64, cols as i64], [stride as i64, 1]);
    let op = L2Normalize::load(device).unwrap();
    let y = to.view_strided_mut(0, &shape, &strides).unwrap();
    op.run(from.view_strided(0, &shape, &strides).unwrap(), y, EPS, Stream::default()).unwrap();
    let y = to.download().unwrap();
    for row in 0..rows {
        let at = |col: usize| f64::from(x[row * stride + col].to_f32());
        let norm = (0..cols).map(|col| at(col).powi(2)).sum::<f64>().sqrt().max(EPS.into());
        for col in 0..cols {
            let (got, right) = (f64::from(y[row * stride + col].to_f32()), at(col) / norm);
            let context = format!("{device:?}, {rows} x {cols}, gap {gap}, row {row}, column {col}");
            assert!((got - right).abs() <= max * right.abs(), "{context}: {got}, expected {right}");
        }
        let operands = &y[row * stride + cols..(row + 1) * stride];
        assert!(operands.iter().all(|y| y.to_f32().is_nan()), "row {row}: something was written beside it");
    }
}

#[test]
fn rows_have_length_one() {
    for device in devices() {
        // The shapes cover vector and scalar access, more rows than a block processes, and more columns than
        // a warp has lanes.
        for shape in [[5, 64, 0], [9, 1000, 0], [3, 7, 0], [6, 64, 1], [1, 1, 3], [70, 512, 8]] {
            check::<f32>(&device, shape, 8.0 * f64::from(f32::EPSILON));
            check::<bf16>(&device, shape, 1.0 / 256.0);
        }
    }
}

#[test]
fn other_arguments_are_errors() {
    for device in devices() {
        let (x, mut y) = (device.upload(&[1.0_f32; 8]).unwrap(), device.alloc::<f32>(8).unwrap());
        let op = L2Normalize::load(&device).unwrap();
        let mut says = |x_shape: &[i64], y_shape: &[i64], text: &str| {
            let y = y.view_mut(y_shape).unwrap();
            let error = op.run(x.view(x_shape).unwrap(), y, EPS, Stream::default()).unwrap_err().to_string();
            assert_eq!(error, format!("l2_normalize: {text}"));
        };
        says(&[8], &[8], "x has shape [8], expected [rows, columns]");
        says(&[2, 4], &[4, 2], "y has shape [4, 2], expected [2, 4]");
    }
}
