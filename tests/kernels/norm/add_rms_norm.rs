//! `add_rms_norm`: the sum is the rounded sum, bit for bit, and the norm is that of the rounded sum, against f64.
use half::{bf16, f16};
use oxiwarp::{Device, Element, RmsNorm, Rounding, Stream, add_rms_norm};
use oxiwarp_tests::compare::{same_bits, within_ulps};
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, seed, values, wide};

use super::rms_norm::{AnyWeight, bound, reference, run};
use crate::Test;

pub const TESTS: &[Test] = &[
    ("add_rms_norm::f32", table::<f32>),
    ("add_rms_norm::f16", table::<f16>),
    ("add_rms_norm::bf16", table::<bf16>),
    ("add_rms_norm::layouts", layouts),
    ("add_rms_norm::rows_kept_in_l2", kept),
];

/// One shape and layout, with a weight of the element type.
pub fn check<T: Element>(
    device: &Device,
    seed: u64,
    shape: [i64; 2],
    [read, write]: [Layout; 2],
    params: RmsNorm,
) {
    let (random, cols) = (&mut random(seed), shape[1] as usize);
    let len = shape[0] as usize * cols;
    let (x, residual, weight): (Vec<T>, Vec<T>, Vec<T>) =
        (values(random, len), values(random, len), values(random, cols));
    let upload = |values: &[T]| Matrix::upload(device, values, shape, read);
    let (x_matrix, residual_matrix) = (upload(&x), upload(&residual));
    let weight_matrix =
        AnyWeight::Same(Matrix::upload(device, &weight, [1, cols as i64], Layout::dense(cols as i64)));
    let mut y = Matrix::<T>::poisoned(device, shape, write);
    let mut sum = Matrix::<T>::poisoned(device, shape, write);
    let (read_x, read_residual) = (x_matrix.view(), residual_matrix.view());
    let weight_view = Some(weight_matrix.view());
    let stream = Stream::default();
    add_rms_norm(device, read_x, read_residual, weight_view, y.view_mut(), sum.view_mut(), params, stream)
        .expect("valid arguments");

    let expected: Vec<T> = (0..len).map(|at| T::from_f32(x[at].to_f32() + residual[at].to_f32())).collect();
    same_bits(&sum.download(), &expected);
    // A second rounding of a 16-bit type: half an ulp of the value before the weight, which may be a larger binade.
    let allowed = if params.rounding == Rounding::Once { bound::<T>() } else { bound::<T>() + 2.0 };
    if dense_short::<T>(shape, [read, write]) {
        let alone = run(device, &expected, Some(&weight_matrix), shape, [read, write], params);
        same_bits(&y.download(), &alone);
    }
    let norm = reference(&wide(&expected), Some(&wide(&weight)), cols, params);
    within_ulps(&y.download(), &norm, cols, allowed);
}

/// Rows of which both ops are promised to make the same bits: the same access, and up to 32 KiB.
fn dense_short<T: Element>([_, cols]: [i64; 2], [read, write]: [Layout; 2]) -> bool {
    read == write && cols as usize * size_of::<T>() <= 32 << 10
}

/// More rows than L2 holds; those of the norm alone, which reads half as much, it does hold.
fn kept(device: &Device) {
    let rows = if device.arch().is_some() { 5_001 } else { 5 };
    check::<bf16>(device, seed(), [rows, 4_096], [Layout::dense(4_096); 2], RmsNorm::default());
}

fn table<T: Element>(device: &Device) {
    let seed = seed();
    for shape in shapes() {
        eprintln!("{} x {} ({}), OXIWARP_SEED={seed}", shape.rows, shape.cols, shape.why);
        for rounding in [Rounding::Once, Rounding::BeforeWeight] {
            let params = RmsNorm { rounding, ..RmsNorm::default() };
            check::<T>(device, seed, [shape.rows, shape.cols], [Layout::dense(shape.cols); 2], params);
        }
    }
}

fn layouts(device: &Device) {
    let seed = seed();
    for cols in [7, 256, 2048] {
        let dense = Layout::dense(cols);
        for odd in [Layout { offset: 8, stride: cols + 8 }, Layout { offset: 3, stride: cols + 1 }] {
            for layouts in [[dense, odd], [odd, dense], [odd, odd]] {
                eprintln!("{cols} columns, {layouts:?}, OXIWARP_SEED={seed}");
                check::<bf16>(
                    device,
                    seed,
                    [6, cols],
                    layouts,
                    RmsNorm { weight_offset: 1.0, ..RmsNorm::default() },
                );
            }
        }
    }
}
