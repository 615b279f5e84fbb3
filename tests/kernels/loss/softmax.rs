//! Compares `softmax` and `log_softmax` with f64 results: the shapes of `tests/shapes.json`, layouts, and
//! rows for which `exp(x)` overflows.
use half::{bf16, f16};
use oxiwarp::{Device, Element, Stream, View, softmax};
use oxiwarp_tests::alone::rows_stand_alone;
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::ulp;
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, random, values, wide};

use crate::support::errors::says;
use crate::support::softmax_case::{check, close, run};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("softmax::f32_against_f64", against_f64::<f32>),
    ("softmax::f16_against_f64", against_f64::<f16>),
    ("softmax::bf16_against_f64", against_f64::<bf16>),
    ("softmax::f32_layouts", layouts::<f32>),
    ("softmax::bf16_layouts", layouts::<bf16>),
    ("softmax::two_levels_of_rows", two_levels),
    ("softmax::rows_do_not_depend_on_each_other", batch_invariance),
    ("softmax::f32_extremes", extremes::<f32>),
    ("softmax::f16_extremes", extremes::<f16>),
    ("softmax::bf16_extremes", extremes::<bf16>),
    ("softmax::nan_and_infinity_stay_in_their_row", not_finite),
    ("softmax::bad_input", refuses),
];

fn against_f64<T: Element>(device: &Device) {
    let seed = seed();
    for shape in shapes() {
        case!("{} x {} ({})", shape.rows, shape.cols, shape.why);
        check::<T>(device, seed, [shape.rows, shape.cols], [Layout::dense(shape.cols); 2]);
    }
}

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

/// Tests a view `[3, 4, 64]` inside a tensor `[3, 6, 64]`. After every four rows, the view skips two rows.
/// The rows of the view are therefore not evenly spaced, and the op needs two strides to address them.
fn two_levels(device: &Device) {
    let x: Vec<f32> = values(&mut random(seed()), 3 * 6 * 64);
    let (from, mut to) = (device.upload(&x).unwrap(), device.alloc::<f32>(3 * 4 * 64).unwrap());
    let shape = [3, 4, 64];
    let view = from.view_strided(64, &shape, &[6 * 64, 64, 1]).unwrap();
    softmax(device, view, to.view_mut(&shape).unwrap(), false, Stream::default()).unwrap();
    let inside: Vec<f32> = (0..3).flat_map(|i| x[(i * 6 + 1) * 64..(i * 6 + 5) * 64].to_vec()).collect();
    close(&to.download().unwrap(), &wide(&inside), 64, false);
}

fn batch_invariance(device: &Device) {
    rows_stand_alone(&[5, 128, 1536, 3072, 9000, 66_000], |x, shape| {
        [run(device, x, shape, [Layout::dense(shape[1]); 2], false)]
    });
}

/// A function that returns the logit of a column. Its arguments are the column and the lowest finite number
/// (approximately) of the element type.
type Logit = fn(usize, f32) -> f32;

/// Tests rows for which `exp(x)` overflows or underflows if the maximum is not subtracted first. The row
/// lengths select all kinds of launch configurations of the op.
fn extremes<T: Element>(device: &Device) {
    let lowest = if T::DTYPE == oxiwarp::Dtype::F16 { -65_504.0 } else { -3.38e38 };
    let kinds: [(&str, Logit); 7] = [
        ("all equal", |_, _| 3.0),
        ("all huge", |c, _| 1e4 + (c % 3) as f32 * 64.0),
        ("huge and tiny", |c, _| if c % 2 == 0 { 1e4 } else { -1e4 }),
        ("one-hot", |c, _| if c == 4 { 100.0 } else { -100.0 }),
        ("masked with -inf", |c, _| if c % 3 == 0 { f32::NEG_INFINITY } else { (c % 5) as f32 }),
        ("masked with the lowest number", |c, lowest| if c > 4 { lowest } else { -(c as f32) }),
        ("all masked with the lowest number", |_, lowest| lowest),
    ];
    for cols in [5_usize, 8, 96, 1000, 1024, 4104, 33_000, 70_000] {
        for (what, kind) in kinds {
            case!("{cols} columns, {what}");
            let x: Vec<T> = (0..2 * cols).map(|at| T::from_f32(kind(at % cols, lowest))).collect();
            for log in [false, true] {
                let y = run(device, &x, [2, cols as i64], [Layout::dense(cols as i64); 2], log);
                close(&y, &wide(&x), cols, log);
            }
            let y = run(device, &x, [2, cols as i64], [Layout::dense(cols as i64); 2], false);
            let sum: f64 = wide(&y[cols..]).iter().sum();
            let roundings: f64 = wide(&y[cols..]).iter().map(|&y| 0.5 * ulp(T::DTYPE, y)).sum();
            assert!((sum - 1.0).abs() <= 1e-6 + roundings, "the sum is {sum}");
        }
    }
}

fn not_finite(device: &Device) {
    for cols in [40, 4096, 70_000_usize] {
        let mut x = vec![1.0_f32; 5 * cols];
        (x[cols + 3], x[2 * cols + 7]) = (f32::NAN, f32::INFINITY);
        x[3 * cols..4 * cols].fill(f32::NEG_INFINITY);
        for log in [false, true] {
            let y = run(device, &x, [5, cols as i64], [Layout::dense(cols as i64); 2], log);
            close(&y[..cols], &wide(&x[..cols]), cols, log);
            close(&y[4 * cols..], &wide(&x[4 * cols..]), cols, log);
            let (nan, rest) = (&y[cols..2 * cols], &y[3 * cols..4 * cols]);
            assert!(nan.iter().chain(rest).all(|y| y.is_nan()), "a NaN, or -inf alone, is NaN throughout");
            assert!(y[2 * cols + 7].is_nan(), "an infinity is NaN");
        }
    }
}

fn refuses(device: &Device) {
    let x = device.upload(&[1.0_f32; 64]).unwrap();
    let half = device.upload(&[f16::ONE; 64]).unwrap();
    let mut y = device.alloc::<f32>(64).unwrap();
    let mut refuses = |x: View, y_shape: &[i64], text: &str| {
        says(softmax(device, x, y.view_mut(y_shape).unwrap(), false, Stream::default()), text);
    };
    refuses(x.view(&[4, 16]).unwrap(), &[4, 8], "softmax: out has shape [4, 8], expected [4, 16]");
    refuses(half.view(&[4, 16]).unwrap(), &[4, 16], "softmax: out is f32, expected f16");
    refuses(x.view(&[4, 0]).unwrap(), &[4, 0], "softmax: x has shape [4, 0], expected a last dimension");
    refuses(x.view(&[]).unwrap(), &[], "softmax: x has shape [], expected at least one dimension");
    let columns = x.view_strided(0, &[16, 4], &[1, 16]).unwrap();
    refuses(columns, &[16, 4], "softmax: x of shape [16, 4] has strides [1, 16]: its last dimension");
    let same = x.view(&[4, 16]).unwrap();
    // SAFETY: this writable view covers the memory of `x`, which is alive. The op rejects the overlap before
    // it accesses the memory.
    let on_x = unsafe { oxiwarp::ViewMut::from_raw(same.ptr().cast_mut(), same.dtype(), &[4, 16], &[16, 1]) }
        .unwrap();
    says(softmax(device, same, on_x, false, Stream::default()), "softmax: out overlaps x");
    assert!(y.download().unwrap().iter().all(|y| y.is_nan()), "something was written");
    let out = y.view_mut(&[4, 16]).unwrap();
    softmax(device, x.view(&[4, 16]).unwrap(), out, false, Stream::default()).expect("it still works");
}
