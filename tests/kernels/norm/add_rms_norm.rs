//! Tests `add_rms_norm`, which adds two inputs and normalizes the rounded sum. The sum must have the expected
//! bits. The norm is compared with a computation in f64.
use half::{bf16, f16};
use oxiwarp::{Device, Element, RmsNorm, Rounding, Stream, ViewMut, add_rms_norm};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::Layout;

use crate::support::add_rms_norm_case::{check, check_in_place};
use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("add_rms_norm::f32", table::<f32>),
    ("add_rms_norm::f16", table::<f16>),
    ("add_rms_norm::bf16", table::<bf16>),
    ("add_rms_norm::layouts", layouts),
    ("add_rms_norm::rows_kept_in_l2", kept),
    ("add_rms_norm::in_place", in_place),
    ("add_rms_norm::in_place_bad_input", in_place_refuses),
];

/// Tests a launch that uses the `evict_last` L2 policy, because the two inputs of `add_rms_norm` together
/// exceed L2. `rms_norm` of the sum has a single input, which fits into L2. Both norms must have the same
/// bits.
fn kept(device: &Device) {
    let rows = if device.arch().is_some() { 5_001 } else { 5 };
    check::<bf16>(device, seed(), [rows, 4_096], [Layout::dense(4_096); 2], RmsNorm::default());
}

fn table<T: Element>(device: &Device) {
    let seed = seed();
    for shape in shapes() {
        case!("{} x {} ({})", shape.rows, shape.cols, shape.why);
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
                case!("{cols} columns, {layouts:?}");
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

/// Tests outputs that are the inputs. The row lengths select each kernel: in registers with two and four
/// packs per thread, and rows that the kernel reads twice. 20,480 columns are more than the registers of a
/// block have.
fn in_place(device: &Device) {
    let seed = seed();
    for cols in [1, 7, 129, 256, 3072, 8192, 20_480, 40_961] {
        for layout in [
            Layout::dense(cols),
            Layout { offset: 8, stride: cols + 8 },
            Layout { offset: 3, stride: cols + 1 },
        ] {
            case!("{cols} columns, {layout:?}");
            let rows = if cols > 10_000 { 2 } else { 9 };
            check_in_place::<bf16>(device, seed, [rows, cols], layout);
            check_in_place::<f16>(device, seed, [rows, cols], layout);
            check_in_place::<f32>(device, seed, [rows, cols], layout);
        }
    }
}

/// Tests outputs that overlap an input without being the same tensor, or that replace the weight.
fn in_place_refuses(device: &Device) {
    let memory = device.upload(&[1.0_f32; 64]).unwrap();
    let out = |offset: usize, shape: &[i64], strides: &[i64]| {
        let view = memory.view_strided(offset, shape, strides).unwrap();
        // SAFETY: the memory lives until the end of the function. The call fails before it writes anything.
        unsafe { ViewMut::from_raw(view.ptr().cast_mut(), view.dtype(), shape, strides).unwrap() }
    };
    let run = |y: ViewMut, sum: ViewMut| {
        let view = |offset| memory.view_strided(offset, &[8], &[1]).unwrap();
        let (x, residual, weight) = (view(0), view(8), Some(view(16)));
        add_rms_norm(device, x, residual, weight, y, sum, RmsNorm::default(), Stream::default())
    };
    let plain = |offset| out(offset, &[8], &[1]);
    says(run(plain(1), plain(32)), "add_rms_norm: out overlaps x");
    says(run(plain(32), plain(9)), "add_rms_norm: sum overlaps residual");
    says(run(plain(16), plain(32)), "add_rms_norm: out overlaps weight");
    says(run(plain(0), plain(0)), "add_rms_norm: out overlaps sum");
    assert!(memory.download().unwrap().iter().all(|value| *value == 1.0), "something was written");
    run(plain(8), plain(0)).expect("in place");
}
