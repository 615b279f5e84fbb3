//! Compares the results of the kernel `softplus` with a computation in f64.
mod common;

use common::{U, devices, f64_of, fails, rounding, succeeds, values};
use half::{bf16, f16};
use oxiwarp_kernel_templates::softplus::Softplus;
use oxiwarp_runtime::{Device, Element, Stream};

/// Checks the kernel on `len` elements. Input and output start at element `offset` of their buffers.
fn check<T: Element>(device: &Device, len: usize, offset: usize) {
    let x = values::<T>(len + offset, 1, 20.0);
    let (from, shape) = (device.upload(&x).unwrap(), [len as i64]);
    // The whole buffer is NaN before the call. It has 16 more elements after the output, which the kernel
    // must not write.
    let mut to = device.alloc::<T>(offset + len + 16).unwrap();
    let op = Softplus::load(device).unwrap();
    let y = to.view_strided_mut(offset, &shape, &[1]).unwrap();
    succeeds(op.run(from.view_strided(offset, &shape, &[1]).unwrap(), y, Stream::default()));
    let y = to.download().unwrap();
    for i in 0..len {
        let (x, got) = (f64_of(x[offset + i]), f64_of(y[offset + i]));
        let right = x.exp().ln_1p();
        // `exp` has an error of 2 ulp (4 U). The division, the series and the sums have six roundings.
        let allowed = 10.0 * U * right + rounding::<T>(right * (1.0 + 10.0 * U));
        let context = format!("{device:?}, {}, {len} elements at {offset}, x[{i}] = {x}", T::DTYPE);
        assert!((got - right).abs() <= allowed, "{context}: {got}, expected {right}");
    }
    let outside = y[..offset].iter().chain(&y[offset + len..]);
    assert!(outside.clone().all(|y| f64_of(*y).is_nan()), "{len} elements at {offset}: wrote outside");
}

#[test]
fn results_are_those_of_the_formula() {
    for device in devices() {
        // The lengths cover less than a pack (16-byte vector), one pack, packs with a remainder, and several
        // blocks. With offset 1, the data is not aligned to 16 bytes.
        for len in [1, 3, 4, 7, 8, 9, 255, 2048, 5003] {
            for offset in [0, 1] {
                check::<f32>(&device, len, offset);
                check::<f16>(&device, len, offset);
                check::<bf16>(&device, len, offset);
            }
        }
    }
}

#[test]
fn special_values() {
    for device in devices() {
        let x = device.upload(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30]).unwrap();
        let mut y = device.alloc::<f32>(5).unwrap();
        let op = Softplus::load(&device).unwrap();
        succeeds(op.run(x.view(&[5]).unwrap(), y.view_mut(&[5]).unwrap(), Stream::default()));
        let y = y.download().unwrap();
        assert!(y[0].is_nan());
        assert_eq!(y[1..], [f32::INFINITY, 0.0, 1e30, 0.0], "{device:?}");
    }
}

#[test]
fn wrong_arguments_are_errors() {
    for device in devices() {
        let (x, mut y) = (device.upload(&[1.0_f32; 8]).unwrap(), device.alloc::<f32>(8).unwrap());
        let (flat, mut half) = (x.view(&[8]).unwrap(), device.alloc::<f16>(8).unwrap());
        let (op, stream) = (Softplus::load(&device).unwrap(), Stream::default());
        let done = op.run(flat, y.view_mut(&[2, 4]).unwrap(), stream);
        fails(done, "softplus: y has shape [2, 4], expected [8]");
        let gaps = x.view_strided(0, &[2, 2], &[4, 1]).unwrap();
        let done = op.run(gaps, y.view_mut(&[2, 2]).unwrap(), stream);
        fails(done, "softplus: x of shape [2, 2] has strides [4, 1]: the tensor must be contiguous");
        fails(op.run(flat, half.view_mut(&[8]).unwrap(), stream), "softplus: y is f16, expected f32");
        // No kernel has the dtype i32.
        let (x, mut y) = (device.upload(&[1_i32; 2]).unwrap(), device.alloc::<i32>(2).unwrap());
        assert!(op.run(x.view(&[2]).unwrap(), y.view_mut(&[2]).unwrap(), stream).is_err());
    }
}
