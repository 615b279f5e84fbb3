//! `rms_norm` with a weight: one tensor read, one written.
use criterion::Criterion;
use half::bf16;
use oxiwarp::{RmsNorm, rms_norm};
use oxiwarp_benches::{Gpu, SHAPES};

use crate::{GpuTime, measure};

pub fn bench(criterion: &mut Criterion<GpuTime>, gpu: &Gpu) {
    for &(rows, cols) in SHAPES {
        let shape = [rows as i64, cols as i64];
        let x = gpu.rotated::<bf16>(rows * cols).expect("device memory");
        let mut y = gpu.rotated::<bf16>(rows * cols).expect("device memory");
        let weight = gpu.device.upload(&vec![bf16::ONE; cols]).expect("device memory");
        measure(criterion, gpu, "rms_norm", (rows, cols), rows * cols * 4, |i, stream| {
            let (x, y) = (x[i % x.len()].view(&shape)?, y[i % x.len()].view_mut(&shape)?);
            rms_norm(&gpu.device, x, Some(weight.view(&shape[1..])?), y, RmsNorm::default(), stream)
        });
    }
}
