//! Compares `layer_norm` with f64 results for the shapes of `tests/shapes.json`. Different memory layouts and
//! different launches must give the same bits for the same values.
use half::{bf16, f16};
use oxiwarp::{Affine, Device, Dtype, Element, Stream, layer_norm};
use oxiwarp_tests::alone::rows_stand_alone;
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, random, values};

use crate::support::layer_norm_case::{EPS, PARAMETERS, check, run};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("layer_norm::f32_against_f64", against_f64::<f32>),
    ("layer_norm::f16_against_f64", against_f64::<f16>),
    ("layer_norm::bf16_against_f64", against_f64::<bf16>),
    ("layer_norm::f32_parameters", parameters::<f32>),
    ("layer_norm::f16_parameters", parameters::<f16>),
    ("layer_norm::bf16_parameters", parameters::<bf16>),
    ("layer_norm::f32_layouts", layouts::<f32>),
    ("layer_norm::f16_layouts", layouts::<f16>),
    ("layer_norm::bf16_layouts", layouts::<bf16>),
    ("layer_norm::rows_do_not_depend_on_each_other", batch_invariance),
    ("layer_norm::two_levels_of_rows", two_levels),
    ("layer_norm::nan_and_infinity_stay_in_their_row", not_finite),
    ("layer_norm::constant_rows", constant_rows),
];

/// Returns a mean that is large compared with the standard deviation of the rows. Near this mean, `T` can
/// represent few different values. If a kernel computed the variance as `E[x²] - E[x]²`, the leading digits
/// of the variance would cancel.
fn far<T: Element>() -> f32 {
    match T::DTYPE {
        Dtype::Bf16 => 500.0,
        Dtype::F16 => 5_000.0,
        _ => 50_000.0,
    }
}

fn against_f64<T: Element>(device: &Device) {
    let seed = seed();
    for (i, shape) in shapes().into_iter().enumerate() {
        case!("{} x {} ({})", shape.rows, shape.cols, shape.why);
        for mean in [0.0, far::<T>()] {
            for parameters in [PARAMETERS[0], PARAMETERS[1 + i % 5]] {
                let layouts = [Layout::dense(shape.cols); 2];
                check::<T>(device, seed, [shape.rows, shape.cols], layouts, parameters, mean);
            }
        }
    }
}

/// Checks the combinations `PARAMETERS` of weight and bias with row lengths for each kind of kernel. One kind
/// supports any row. One needs rows of whole tiles of 128 columns. Two more keep the row in the registers of
/// a warp or of a block.
fn parameters<T: Element>(device: &Device) {
    let seed = seed();
    for cols in [100, 512, 640, 1280, 3072, 4096, 5120] {
        for parameters in PARAMETERS {
            case!("{cols} columns, {parameters:?}");
            check::<T>(device, seed, [3, cols], [Layout::dense(cols); 2], parameters, 1.0);
        }
    }
}

/// Tests that rows with gaps and unaligned base addresses give the same bits as contiguous rows.
fn layouts<T: Element>(device: &Device) {
    let seed = seed();
    for cols in [1, 64, 129, 512, 640, 1280, 2048, 25_000] {
        let kinds = [
            Layout { offset: 16, stride: cols + 64 },
            Layout { offset: 0, stride: cols + 1 },
            Layout { offset: 1, stride: cols },
        ];
        for parameters in [PARAMETERS[0], PARAMETERS[1], PARAMETERS[5]] {
            let packed = check::<T>(device, seed, [5, cols], [Layout::dense(cols); 2], parameters, 1.0);
            for layout in kinds {
                for layouts in [[layout; 2], [layout, Layout::dense(cols)], [Layout::dense(cols), layout]] {
                    case!("{cols} columns, {layouts:?}");
                    same_bits(&check::<T>(device, seed, [5, cols], layouts, parameters, 1.0), &packed);
                }
            }
        }
    }
}

fn batch_invariance(device: &Device) {
    rows_stand_alone(&[5, 128, 640, 1280, 1536, 3072, 9000, 30_000], |x, shape| {
        [run(device, x, [None; 2], shape, [Layout::dense(shape[1]); 2])]
    });
}

/// Tests a view `[3, 4, 64]` inside a tensor `[3, 6, 64]`. After every four rows, the view skips two rows.
/// The rows of the view are therefore not evenly spaced, and the op needs two strides to address them.
fn two_levels(device: &Device) {
    let x: Vec<f32> = values(&mut random(seed()), 3 * 6 * 64);
    let (from, mut to) = (device.upload(&x).unwrap(), device.alloc::<f32>(3 * 4 * 64).unwrap());
    let shape = [3, 4, 64];
    let view = from.view_strided(64, &shape, &[6 * 64, 64, 1]).unwrap();
    layer_norm(device, view, Affine::default(), to.view_mut(&shape).unwrap(), EPS, Stream::default())
        .unwrap();
    let inside: Vec<f32> = (0..3).flat_map(|i| x[(i * 6 + 1) * 64..(i * 6 + 5) * 64].to_vec()).collect();
    let packed = run(device, &inside, [None; 2], [12, 64], [Layout::dense(64); 2]);
    same_bits(&to.download().unwrap(), &packed);
}

fn not_finite(device: &Device) {
    let cols = 40;
    let mut x: Vec<f32> = values(&mut random(seed()), 5 * cols);
    let right = run(device, &x, [None; 2], [5, cols as i64], [Layout::dense(cols as i64); 2]);
    (x[cols + 3], x[2 * cols + 7], x[3 * cols + 9]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let y = run(device, &x, [None; 2], [5, cols as i64], [Layout::dense(cols as i64); 2]);
    assert!(y[cols..4 * cols].iter().all(|y| y.is_nan()), "there is no mean");
    same_bits(&y[..cols], &right[..cols]);
    same_bits(&y[4 * cols..], &right[4 * cols..]);
}

/// Tests rows whose elements are all equal, with lengths that torch's vectorised kernel does not support. The
/// kernel must compute a variance of exactly 0, as torch does.
fn constant_rows(device: &Device) {
    for cols in [5_i64, 7, 9, 11, 13, 17, 33, 127, 1001, 2305] {
        for value in [3e4_f32, 1000.1, 0.1, -7.3] {
            let x = device.upload(&vec![value; 3 * cols as usize]).expect("memory");
            let run = |eps| {
                let mut y = device.alloc::<f32>(x.len()).expect("memory");
                let (x, y_view) =
                    (x.view(&[3, cols]).expect("dense"), y.view_mut(&[3, cols]).expect("dense"));
                layer_norm(device, x, Affine::default(), y_view, eps, Stream::default()).expect("valid");
                y.download().expect("ran")
            };
            let y = run(EPS);
            assert!(y.iter().all(|&y| y == 0.0), "{cols} columns of {value}: {}", y[0]);
            assert!(run(0.0).iter().all(|y| y.is_nan()), "{cols} columns of {value} without eps");
        }
    }
}
