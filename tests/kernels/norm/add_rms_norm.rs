//! Tests `add_rms_norm`, which adds two inputs and normalizes the rounded sum. The sum must have the expected
//! bits. The norm is compared with a computation in f64.
use half::{bf16, f16};
use oxiwarp::{Device, Element, RmsNorm, Rounding};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::Layout;

use crate::support::add_rms_norm_case::check;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("add_rms_norm::f32", table::<f32>),
    ("add_rms_norm::f16", table::<f16>),
    ("add_rms_norm::bf16", table::<bf16>),
    ("add_rms_norm::layouts", layouts),
    ("add_rms_norm::rows_kept_in_l2", kept),
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
