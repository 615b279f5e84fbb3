//! Compares `rms_norm` with f64 results, for the shapes of `tests/shapes.json` and several memory layouts.
//! Launches with different numbers of rows must give the same bits for the same row.
use half::{bf16, f16};
use oxiwarp::{Device, Element, RmsNorm, Rounding, Stream, rms_norm};
use oxiwarp_tests::alone::rows_stand_alone;
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, within_ulps};
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use crate::support::rms_norm_case::{AnyWeight, bound, reference, run};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("rms_norm::f32_against_f64", against_f64::<f32>),
    ("rms_norm::f16_against_f64", against_f64::<f16>),
    ("rms_norm::bf16_against_f64", against_f64::<bf16>),
    ("rms_norm::f32_layouts", layouts::<f32>),
    ("rms_norm::f16_layouts", layouts::<f16>),
    ("rms_norm::bf16_layouts", layouts::<bf16>),
    ("rms_norm::rows_do_not_depend_on_each_other", batch_invariance),
    ("rms_norm::rows_kept_in_l2", kept),
    ("rms_norm::two_levels_of_rows", two_levels),
    ("rms_norm::nan_and_infinity_stay_in_their_row", not_finite),
    ("rms_norm::several_threads", threads),
];

/// Checks one shape without a weight and with a weight of each dtype. With a weight, it checks both values of
/// `weight_offset` (0 and 1) in both rounding modes.
fn check<T: Element>(device: &Device, seed: u64, shape: [i64; 2], layouts: [Layout; 2]) {
    let (random, cols) = (&mut random(seed), shape[1] as usize);
    let x: Vec<T> = values(random, shape[0] as usize * cols);
    let (same, single): (Vec<T>, Vec<f32>) = (values(random, cols), values(random, cols));
    let params = RmsNorm { eps: 1e-6, ..RmsNorm::default() };
    let weight_layout = Layout { offset: layouts[0].offset, ..Layout::dense(cols as i64) };

    let plain = run(device, &x, None, shape, layouts, params);
    within_ulps(&plain, &reference(&wide(&x), None, cols, params), cols, bound::<T>());

    let weights = [
        (wide(&same), AnyWeight::Same(Matrix::upload(device, &same, [1, cols as i64], weight_layout))),
        (wide(&single), AnyWeight::F32(Matrix::upload(device, &single, [1, cols as i64], weight_layout))),
    ];
    for (wide_weight, weight) in &weights {
        for weight_offset in [0.0, 1.0] {
            let params = RmsNorm { weight_offset, ..params };
            let once = run(device, &x, Some(weight), shape, layouts, params);
            within_ulps(&once, &reference(&wide(&x), Some(wide_weight), cols, params), cols, bound::<T>());

            // With `BeforeWeight`, the op rounds the normalized row, multiplies it by the weight, and rounds
            // again. `plain` contains the rounded normalized rows. From it, the test computes the expected
            // bits.
            let params = RmsNorm { rounding: Rounding::BeforeWeight, ..params };
            let twice = run(device, &x, Some(weight), shape, layouts, params);
            let product = |at: usize| plain[at].to_f32() * (weight_offset + wide_weight[at % cols] as f32);
            let expected: Vec<T> = (0..plain.len()).map(|at| T::from_f32(product(at))).collect();
            same_bits(&twice, &expected);
        }
    }
}

fn against_f64<T: Element>(device: &Device) {
    let seed = seed();
    for shape in shapes() {
        case!("{} x {} ({})", shape.rows, shape.cols, shape.why);
        check::<T>(device, seed, [shape.rows, shape.cols], [Layout::dense(shape.cols); 2]);
    }
}

/// Tests four layouts: contiguous rows, gaps of 64 elements between rows, gaps of one element, and a base
/// address that is not aligned. Each layout of the input is combined with each layout of the output.
fn layouts<T: Element>(device: &Device) {
    let seed = seed();
    for cols in [1, 64, 129, 2048] {
        let kinds = [
            Layout::dense(cols),
            Layout { offset: 16, stride: cols + 64 },
            Layout { offset: 0, stride: cols + 1 },
            Layout { offset: 1, stride: cols },
        ];
        for x in kinds {
            for y in kinds {
                case!("{cols} columns, {x:?} to {y:?}");
                check::<T>(device, seed, [5, cols], [x, y]);
            }
        }
    }
}

fn batch_invariance(device: &Device) {
    rows_stand_alone(&[5, 128, 1536, 3072, 9000], |x, shape| {
        [run(device, x, None, shape, [Layout::dense(shape[1]); 2], RmsNorm::default())]
    });
}

/// Tests rows that together exceed L2, so that the launch uses the `evict_last` L2 policy. The result must
/// have the same bits as launches of a quarter of the rows, which do not use this policy.
fn kept(device: &Device) {
    let seed = seed();
    let cases =
        if device.arch().is_some() { [(9_001, 4_096), (1_201, 32_768)] } else { [(9, 4_096), (5, 32_768)] };
    for (rows, cols) in cases {
        case!("{rows} rows of {cols} columns");
        let x: Vec<bf16> = values(&mut random(seed), rows * cols);
        let run = |x: &[bf16]| {
            let shape = [(x.len() / cols) as i64, cols as i64];
            run(device, x, None, shape, [Layout::dense(shape[1]); 2], RmsNorm::default())
        };
        let few = x.chunks(rows / 4 * cols).flat_map(run).collect::<Vec<_>>();
        same_bits(&run(&x), &few);
    }
}

/// Tests a view `[3, 4, 64]` inside a tensor `[3, 6, 64]`. After every four rows, the view skips two rows.
/// The rows of the view are therefore not evenly spaced, and the op needs two strides to address them.
fn two_levels(device: &Device) {
    let x: Vec<f32> = values(&mut random(seed()), 3 * 6 * 64);
    let (from, mut to) = (device.upload(&x).unwrap(), device.alloc::<f32>(3 * 4 * 64).unwrap());
    let (shape, strides) = ([3, 4, 64], [6 * 64, 64, 1]);
    let view = from.view_strided(64, &shape, &strides).unwrap();
    rms_norm(device, view, None, to.view_mut(&shape).unwrap(), RmsNorm::default(), Stream::default())
        .unwrap();
    let inside: Vec<f32> = (0..3).flat_map(|i| x[(i * 6 + 1) * 64..(i * 6 + 5) * 64].to_vec()).collect();
    let expected = reference(&wide(&inside), None, 64, RmsNorm::default());
    within_ulps(&to.download().unwrap(), &expected, 64, bound::<f32>());
}

fn not_finite(device: &Device) {
    let cols = 40;
    let mut x = vec![1.0_f32; 4 * cols];
    (x[cols + 3], x[2 * cols + 7]) = (f32::NAN, f32::INFINITY);
    let y = run(device, &x, None, [4, cols as i64], [Layout::dense(cols as i64); 2], RmsNorm::default());
    assert!(y[cols..2 * cols].iter().all(|y| y.is_nan()), "a NaN reaches its whole row");
    for (at, y) in y[2 * cols..3 * cols].iter().enumerate() {
        assert!(if at == 7 { y.is_nan() } else { *y == 0.0 }, "column {at} beside an infinity is {y}");
    }
    assert!(y[..cols].iter().chain(&y[3 * cols..]).all(|y| (y - 1.0).abs() < 1e-5), "other rows are as ever");
}

fn threads(device: &Device) {
    let x: Vec<bf16> = values(&mut random(seed()), 64 * 512);
    let (shape, dense) = ([64, 512], [Layout::dense(512); 2]);
    let expected = run(device, &x, None, shape, dense, RmsNorm::default());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..8 {
                    same_bits(&run(device, &x, None, shape, dense, RmsNorm::default()), &expected);
                }
            });
        }
    });
}
