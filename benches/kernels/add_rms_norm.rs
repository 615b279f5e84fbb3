//! `add_rms_norm` with a weight: two tensors read, two written.
use criterion::Criterion;
use half::bf16;
use oxiwarp::{RmsNorm, add_rms_norm};
use oxiwarp_benches::{Gpu, SHAPES};

use crate::{GpuTime, measure};

pub fn bench(criterion: &mut Criterion<GpuTime>, gpu: &Gpu) {
    for &(rows, cols) in SHAPES {
        let shape = [rows as i64, cols as i64];
        let tensors = || gpu.rotated::<bf16>(rows * cols).expect("device memory");
        let (x, residual, mut y, mut sum) = (tensors(), tensors(), tensors(), tensors());
        let weight = gpu.device.upload(&vec![bf16::ONE; cols]).expect("device memory");
        measure(criterion, gpu, "add_rms_norm", (rows, cols), rows * cols * 8, |i, stream| {
            let at = i % x.len();
            let (x, residual) = (x[at].view(&shape)?, residual[at].view(&shape)?);
            let (y, sum) = (y[at].view_mut(&shape)?, sum[at].view_mut(&shape)?);
            let weight = Some(weight.view(&shape[1..])?);
            add_rms_norm(&gpu.device, x, residual, weight, y, sum, RmsNorm::default(), stream)
        });
    }
}
