//! Compares the results of the softplus kernel with a computation in f64. The kernel runs on the CPU
//! executor, and also on a GPU if there is one.
use half::{bf16, f16};
use oxiwarp_runtime::{Device, Element, Stream};
use softplus::Softplus;

fn devices() -> impl Iterator<Item = Device> {
    [Some(Device::cpu()), Device::cuda(0).ok()].into_iter().flatten()
}

/// Checks the kernel on `len` values from -20 to 20. The relative error of a result may be at most `max`.
fn check<T: Element>(device: &Device, len: usize, max: f64) {
    let x: Vec<_> = (0..len).map(|i| T::from_f32(40.0 * i as f32 / len as f32 - 20.0)).collect();
    let (from, mut to) = (device.upload(&x).unwrap(), device.alloc::<T>(len).unwrap());
    let shape = [len as i64];
    let op = Softplus::load(device).unwrap();
    op.run(from.view(&shape).unwrap(), to.view_mut(&shape).unwrap(), Stream::default()).unwrap();
    for (x, y) in x.iter().zip(to.download().unwrap()) {
        let (x, y) = (f64::from(x.to_f32()), f64::from(y.to_f32()));
        let right = x.exp().ln_1p();
        // 2^-25 is half of the smallest positive f16.
        let allowed = (max * right).max(2.0_f64.powi(-25));
        assert!((y - right).abs() <= allowed, "{device:?}, {}: x = {x}: {y}, expected {right}", T::DTYPE);
    }
}

#[test]
fn results_are_those_of_the_formula() {
    for device in devices() {
        // The lengths cover a partial block, only full blocks, and full blocks followed by a partial block.
        for len in [1, 255, 512, 1000] {
            check::<f32>(&device, len, 8.0 * f64::from(f32::EPSILON));
            check::<f16>(&device, len, 1.0 / 2048.0);
            check::<bf16>(&device, len, 1.0 / 256.0);
        }
    }
}

#[test]
fn special_values() {
    for device in devices() {
        let x = device.upload(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30]).unwrap();
        let mut y = device.alloc::<f32>(5).unwrap();
        let op = Softplus::load(&device).unwrap();
        op.run(x.view(&[5]).unwrap(), y.view_mut(&[5]).unwrap(), Stream::default()).unwrap();
        let y = y.download().unwrap();
        assert!(y[0].is_nan());
        assert_eq!(y[1..], [f32::INFINITY, 0.0, 1e30, 0.0], "{device:?}");
    }
}

#[test]
fn other_arguments_are_errors() {
    for device in devices() {
        let (x, mut y) = (device.upload(&[1.0_f32; 8]).unwrap(), device.alloc::<f32>(8).unwrap());
        let op = Softplus::load(&device).unwrap();
        let says = |done: oxiwarp_runtime::Result<()>| done.unwrap_err().to_string();
        let flat = x.view(&[8]).unwrap();
        assert_eq!(
            says(op.run(flat, y.view_mut(&[2, 4]).unwrap(), Stream::default())),
            "softplus: y has shape [2, 4], expected [8]"
        );
        let columns = x.view_strided(0, &[2, 2], &[4, 1]).unwrap();
        assert_eq!(
            says(op.run(columns, y.view_mut(&[2, 2]).unwrap(), Stream::default())),
            "softplus: x of shape [2, 2] has strides [4, 1]: the tensor must be contiguous"
        );
        let mut half = device.alloc::<f16>(8).unwrap();
        assert_eq!(
            says(op.run(flat, half.view_mut(&[8]).unwrap(), Stream::default())),
            "softplus: y is f16, expected f32"
        );
    }
}
