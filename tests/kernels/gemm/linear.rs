//! Compares `linear` with f64 results, for sizes close to tile sizes, several layouts and several alignments.
//! Also tests that all kernels give the same bits.
use std::ops::Range;

use half::{bf16, f16};
use oxiwarp::{Device, Element, LaunchOverride, Overridable as _};
use oxiwarp_tests::case;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::tensor::{Layout, Matrix};

use crate::support::linear_case::{LinearCase, LinearInputs, Placement, close};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("linear::row_sizes", row_sizes),
    ("linear::column_sizes", column_sizes),
    ("linear::depths", depths),
    ("linear::small", small),
    ("linear::layouts", layouts),
    ("linear::alignment", alignment),
    ("linear::many_tiles", many_tiles),
    ("linear::infinite_inputs", infinite_inputs),
    ("linear::f16_equal_bits", equal_bits::<f16>),
    ("linear::bf16_equal_bits", equal_bits::<bf16>),
];

/// Returns a range of numbers. If the op skips as many kernels as such a number says, it launches the next
/// kernel in its order of preference. Together, the numbers therefore select every kernel.
///
/// On Hopper and on the CPU executor, the first kernel is one for few rows, if `y` has at most 64 rows. Six
/// other Hopper kernels follow, in the order of their estimated times. The last kernels are those for all
/// GPUs: one with tiles of 128 x 128 and one with tiles of 64 x 64 (in either order), then the general
/// kernel. If fewer kernels support a call, the last numbers all select the general kernel.
fn skips(device: &Device) -> Range<usize> {
    let is_hopper = device.arch().is_none() || device.capability() == Some((9, 0));
    0..if is_hopper { 10 } else { 3 }
}

/// Returns the device, with which the op skips `skip` kernels.
pub(super) fn skipping(device: &Device, skip: usize) -> Device {
    device.with_override(LaunchOverride { skip, ..LaunchOverride::default() })
}

/// Compares the results of each kernel with f64.
fn check<T: Element>(device: &Device, p: LinearCase) {
    let inputs = LinearInputs::<T>::new(device, &p);
    for skip in skips(device) {
        case!("{p:?}, skip {skip}");
        close(&inputs.run(&skipping(device, skip), &p), &inputs.expected, &p);
    }
}

fn both(device: &Device, p: LinearCase) {
    check::<f16>(device, p);
    check::<bf16>(device, p);
}

/// Tests numbers of rows around the tile sizes of all kernels.
fn row_sizes(device: &Device) {
    for m in [1, 2, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 193, 257] {
        both(device, LinearCase::of([m, 40, 24], m % 2 == 0));
    }
}

/// Tests numbers of columns around the tile sizes of all kernels.
fn column_sizes(device: &Device) {
    for n in [8, 16, 24, 56, 64, 72, 120, 128, 136, 184, 264] {
        both(device, LinearCase::of([33, n, 24], n % 16 == 0));
    }
}

/// Tests sizes of K around the number of elements of K per buffer, for the buffers of all kernels. With the
/// larger sizes, a kernel uses the buffers of its ring more than once.
fn depths(device: &Device) {
    for k in [8, 16, 24, 32, 40, 56, 64, 72, 96, 104, 128, 136, 264] {
        both(device, LinearCase::of([70, 72, k], k % 16 == 0));
    }
}

fn small(device: &Device) {
    for [m, n, k] in [[1, 8, 8], [1, 8, 72], [1, 264, 16], [129, 8, 56]] {
        both(device, LinearCase::of([m, n, k], false));
        both(device, LinearCase::of([m, n, k], true));
    }
}

/// Tests rows with gaps between them. The gaps contain NaN. With gaps of 8 or 24 elements, rows are aligned
/// to 16 bytes.
fn layouts(device: &Device) {
    for gap in [1, 4, 8, 24] {
        let place = Placement { offset: 0, gap };
        let p = LinearCase::of([67, 72, 40], true);
        both(device, LinearCase { x: place, weight: place, y: place, ..p });
        both(device, LinearCase { x: place, ..p });
        both(device, LinearCase { weight: place, ..p });
        both(device, LinearCase { y: place, ..p });
    }
}

/// Tests operands that do not start at a multiple of 16 bytes.
fn alignment(device: &Device) {
    let p = LinearCase::of([67, 72, 40], true);
    for offset in [1, 2, 4, 7, 8] {
        let place = Placement { offset, gap: 0 };
        both(device, LinearCase { x: place, ..p });
        both(device, LinearCase { weight: place, ..p });
        both(device, LinearCase { y: place, ..p });
        both(device, LinearCase { bias_offset: offset, ..p });
    }
}

/// Tests results with many tiles. The tiles are divided into groups of several rows of tiles, and the kernels
/// process one group after the other.
fn many_tiles(device: &Device) {
    both(device, LinearCase::of([1300, 136, 8], true));
    both(device, LinearCase::of([600, 8, 24], false));
    both(device, LinearCase::of([70, 520, 24], false));
}

/// Tests that an infinite or NaN element of `x` or `weight` affects only its own row or column.
fn infinite_inputs(device: &Device) {
    let p = LinearCase::of([70, 72, 40], false);
    let (m, n, k) = (p.m, p.n, p.k);
    let mut x = vec![bf16::ONE; (m * k) as usize];
    let mut weight = vec![bf16::ONE; (n * k) as usize];
    x[(3 * k + 5) as usize] = bf16::INFINITY;
    weight[(66 * k + 39) as usize] = bf16::NAN;
    let inputs = LinearInputs {
        x: Matrix::upload(device, &x, [m, k], Layout::dense(k)),
        weight: Matrix::upload(device, &weight, [n, k], Layout::dense(k)),
        bias: device.upload(&vec![bf16::ZERO; n as usize]).expect("memory"),
        expected: vec![],
    };
    for skip in skips(device) {
        case!("skip {skip}");
        for (at, got) in inputs.run(&skipping(device, skip), &p).iter().enumerate() {
            let (row, column) = (at as i64 / n, at as i64 % n);
            let right = match (row, column) {
                (_, 66) => got.is_nan(),
                (3, _) => *got == bf16::INFINITY,
                _ => got.to_f32() == k as f32,
            };
            assert!(right, "row {row}, column {column}: {got}");
        }
    }
}

/// Tests that all kernels give the same bits, and that the test runs all of them. Each element of the result
/// has one accumulator, to which the products are added in the order of K. The result therefore does not
/// depend on the tile size.
fn equal_bits<T: Element>(device: &Device) {
    let mut names: Vec<String> = vec![];
    let few_rows = [[15, 200, 1400], [17, 264, 72], [64, 136, 200], [31, 8328, 24], [49, 8200, 24]];
    for sizes in [[130, 136, 200], [65, 72, 104], [200, 24, 72]].into_iter().chain(few_rows) {
        let p = LinearCase::of(sizes, true);
        let inputs = LinearInputs::<T>::new(device, &p);
        let mut results: Vec<Vec<T>> = vec![];
        for skip in skips(device) {
            case!("{p:?}, skip {skip}");
            let device = skipping(device, skip);
            results.push(inputs.run(&device, &p));
            names.extend(device.take_launches());
        }
        for other in &results[1..] {
            same_bits(other, &results[0]);
        }
    }
    let few_rows = ["64x16", "64x16_half", "64x32", "64x32_half", "64x64"];
    let others = ["128x128", "128x192", "128x256", "192x192", "256x128", "256x192"];
    let hopper: Vec<_> =
        few_rows.iter().chain(&others).map(|tile| format!("linear_hopper_{tile}_smem ")).collect();
    let kernels = ["linear_128x128_smem ", "linear_64x64_smem ", "linear_64x64_general_smem "];
    let hopper = if skips(device).len() > kernels.len() { &hopper[..] } else { &[] };
    for kernel in hopper.iter().map(String::as_str).chain(kernels) {
        assert!(names.iter().any(|name| name.starts_with(kernel)), "{kernel}is not in {names:?}");
    }
}
