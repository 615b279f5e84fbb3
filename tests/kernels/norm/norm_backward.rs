//! Tests `rms_norm_backward` and `layer_norm_backward` against f64.
use half::{bf16, f16};
use oxiwarp::{Device, Element};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, random, values};

use crate::support::norm_backward_case::NormBackwardCase;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("norm_backward::f32_against_f64", against_f64::<f32>),
    ("norm_backward::f16_against_f64", against_f64::<f16>),
    ("norm_backward::bf16_against_f64", against_f64::<bf16>),
    ("norm_backward::layouts", layouts),
    ("norm_backward::groups_of_rows", groups),
    ("norm_backward::more_rows_than_blocks", persistent),
    ("norm_backward::rows_do_not_depend_on_each_other", batch_invariance),
    ("norm_backward::sums_are_the_same_each_time", deterministic),
    ("norm_backward::a_nan_stays_in_its_row_and_columns", not_finite),
];

fn against_f64<T: Element>(device: &Device) {
    let seed = seed();
    for shape in shapes() {
        case!("{} x {} ({})", shape.rows, shape.cols, shape.why);
        for layer in [false, true] {
            let case = NormBackwardCase::<T>::new(seed, layer, [shape.rows, shape.cols]);
            case.check(device);
            if shape.cols > 20_000 {
                continue;
            }
            let single = values(&mut random(seed + 1), shape.cols as usize);
            let dsum = Some(values(&mut random(seed + 2), case.x.len()));
            let offset = if layer { 0.0 } else { 1.0 };
            NormBackwardCase { weight: Some(Err(single)), offset, wanted: Some(true), ..case.clone() }
                .check(device);
            NormBackwardCase { weight: None, dsum, wanted: None, ..case }.check(device);
        }
    }
}

fn layouts(device: &Device) {
    let seed = seed();
    for cols in [7, 129, 640, 2048, 4104] {
        let dense = Layout::dense(cols);
        for odd in [Layout { offset: 8, stride: cols + 8 }, Layout { offset: 3, stride: cols + 1 }] {
            for layouts in [[dense, odd, dense], [odd, dense, dense], [dense, dense, odd], [odd; 3]] {
                case!("{cols} columns, {layouts:?}");
                for layer in [false, true] {
                    let case = NormBackwardCase::<bf16>::new(seed, layer, [6, cols]);
                    let dsum = Some(values(&mut random(seed), case.x.len()));
                    NormBackwardCase { layouts, dsum, ..case }.check(device);
                    NormBackwardCase { layouts, ..NormBackwardCase::<f32>::new(seed, layer, [6, cols]) }
                        .check(device);
                }
            }
        }
    }
}

/// Tests so many rows that each thread block processes several rows, one after the other. Some of the kernels
/// keep a row in registers, and others load it again for each pass. One test case has many groups of only a
/// few rows, each with a weight of its own.
fn persistent(device: &Device) {
    let seed = seed();
    for layer in [false, true] {
        NormBackwardCase::<f32>::new(seed, layer, [1_501, 1024]).check(device);
        NormBackwardCase::<f32>::new(seed, layer, [140, 8_208]).check(device);
        let odd = NormBackwardCase::<f32>::new(seed, layer, [1_100, 513]);
        NormBackwardCase { layouts: [Layout { offset: 1, stride: 515 }; 3], ..odd }.check(device);
        let (groups, cols) = (200, 2048);
        let weight = values(&mut random(seed), groups * cols);
        NormBackwardCase {
            weight: Some(Ok(weight)),
            groups,
            ..NormBackwardCase::<f16>::new(seed, layer, [1_200, cols as i64])
        }
        .check(device);
    }
}

/// Tests a weight of shape `[groups, columns]`, in which each group of rows has its own weight vector.
fn groups(device: &Device) {
    let seed = seed();
    for (groups, rows, cols) in [(2, 3, 64), (5, 1, 129), (3, 700, 16), (4, 9, 3072)] {
        for layer in [false, true] {
            let case = NormBackwardCase::<f16>::new(seed, layer, [groups * rows, cols]);
            let weight = values(&mut random(seed), (groups * cols) as usize);
            let case = NormBackwardCase {
                weight: Some(Err(weight)),
                groups: groups as usize,
                wanted: Some(true),
                ..case
            };
            case.check(device);
        }
    }
}

fn batch_invariance(device: &Device) {
    for cols in [5_i64, 128, 1536, 3072, 40_000] {
        let rows = if cols > 10_000 { 7 } else { 300 };
        for layer in [false, true] {
            let case = NormBackwardCase::<bf16>::new(seed(), layer, [rows, cols]);
            let (all, _) = case.run(device);
            for row in [0, 1, rows - 1] {
                let at = (row * cols) as usize..((row + 1) * cols) as usize;
                let (x, dy) = (case.x[at.clone()].to_vec(), case.dy[at.clone()].to_vec());
                for wanted in [None, Some(false)] {
                    let alone = NormBackwardCase {
                        shape: [1, cols],
                        x: x.clone(),
                        dy: dy.clone(),
                        wanted,
                        ..case.clone()
                    };
                    same_bits(&alone.run(device).0, &all[at.clone()]);
                }
            }
        }
    }
}

fn deterministic(device: &Device) {
    for shape in [[3000, 16], [900, 520], [400, 3072], [40, 40_000]] {
        for layer in [false, true] {
            let case = NormBackwardCase {
                wanted: Some(true),
                ..NormBackwardCase::<bf16>::new(seed(), layer, shape)
            };
            let (first, again) = (case.run(device), case.run(device));
            same_bits(&first.0, &again.0);
            assert_eq!(first.1, again.1, "{shape:?}, layer {layer}");
        }
    }
}

fn not_finite(device: &Device) {
    let (rows, cols) = (6, 40_usize);
    for layer in [false, true] {
        let mut case = NormBackwardCase::<f32>::new(seed(), layer, [rows, cols as i64]);
        case.dy[cols + 3] = f32::NAN;
        let (dx, sums) = case.run(device);
        assert!(dx[cols..2 * cols].iter().all(|dx| dx.is_nan()), "a NaN reaches its whole row");
        assert!(dx[..cols].iter().chain(&dx[2 * cols..]).all(|dx| dx.is_finite()), "and no other");
        for sum in sums {
            assert!(sum.iter().enumerate().all(|(column, sum)| sum.is_nan() == (column == 3)));
        }
    }
}
