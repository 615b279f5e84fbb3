//! Compares `quantize_fp8` with its formulas bit by bit, and with f64: shapes, layouts, extreme values, and
//! all rounding boundaries of the two formats.
use half::{bf16, f16};
use oxiwarp::{
    Device, Dtype, E4m3, E5m2, Element, Fp8, Fp8Scaling, LaunchOverride, Overridable as _, Scalar, Stream,
    quantize_fp8, rung,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::tensor::{Layout, random, values};

use crate::support::fp8_case::{Layouts, Quantized, close, group, reference, run, same};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("quantize_fp8::f32_e4m3", shapes::<f32, E4m3>),
    ("quantize_fp8::f16_e4m3", shapes::<f16, E4m3>),
    ("quantize_fp8::bf16_e4m3", shapes::<bf16, E4m3>),
    ("quantize_fp8::bf16_e5m2", shapes::<bf16, E5m2>),
    ("quantize_fp8::f32_layouts", layouts::<f32>),
    ("quantize_fp8::bf16_layouts", layouts::<bf16>),
    ("quantize_fp8::two_levels_of_rows", two_levels),
    ("quantize_fp8::rows_do_not_depend_on_each_other", batch_invariance),
    ("quantize_fp8::every_launch_is_right", every_launch),
    ("quantize_fp8::e4m3_boundaries", boundaries::<E4m3>),
    ("quantize_fp8::e5m2_boundaries", boundaries::<E5m2>),
    ("quantize_fp8::f32_extremes", extremes::<f32>),
    ("quantize_fp8::f16_extremes", extremes::<f16>),
    ("quantize_fp8::bf16_extremes", extremes::<bf16>),
    ("quantize_fp8::nan_and_infinity_stay_visible", not_finite),
];

const SCALINGS: [Fp8Scaling; 2] = [Fp8Scaling::PerRow, Fp8Scaling::PerBlock];

/// Checks one input for both kinds of scales.
fn check<T: Element, E: Fp8 + Scalar>(device: &Device, x: &[T], cols: usize) {
    let shape = [(x.len() / cols) as i64, cols as i64];
    for scaling in SCALINGS {
        let got = run::<T, E>(device, x, shape, scaling, Layouts::dense(shape, scaling));
        same(&got, &reference::<T, E>(x, cols, scaling), cols);
        if x.iter().all(|x| x.to_f32().is_finite()) {
            close::<T, E>(&got, x, cols, scaling);
        }
    }
}

fn shapes<T: Element, E: Fp8 + Scalar>(device: &Device) {
    let seed = seed();
    // The last row length exceeds the registers of a block for every dtype.
    for cols in [1, 7, 127, 128, 129, 136, 640, 1000, 3072, 8200, 12_288, 20_008, 65_544] {
        for rows in if cols < 2000 { [0, 1, 33] } else { [0, 1, 3] } {
            case!("{rows} x {cols}");
            check::<T, E>(device, &values(&mut random(seed), rows * cols), cols);
        }
    }
}

/// Tests rows with and without gaps, unaligned base addresses, and scales in several layouts.
fn layouts<T: Element>(device: &Device) {
    let seed = seed();
    for cols in [1, 64, 129, 136, 2048] {
        let kinds = [
            Layout::dense(cols),
            Layout { offset: 16, stride: cols + 64 },
            Layout { offset: 8, stride: cols + 8 },
            Layout { offset: 0, stride: cols + 1 },
            Layout { offset: 1, stride: cols },
        ];
        let x: Vec<T> = values(&mut random(seed), 5 * cols as usize);
        for scaling in SCALINGS {
            let expected = reference::<T, E4m3>(&x, cols as usize, scaling);
            let (shape, dense) = ([5, cols], Layouts::dense([5, cols], scaling));
            for (at, x_layout) in kinds.into_iter().enumerate() {
                for values in kinds {
                    // The scales of a row are contiguous, or the rows of a block are.
                    let scales = [dense.scales, [17, 1], [2, 11]][at % 3];
                    let layouts = Layouts { x: x_layout, values, scales };
                    case!("{cols} columns, {scaling:?}, {layouts:?}");
                    same(&run::<T, E4m3>(device, &x, shape, scaling, layouts), &expected, cols as usize);
                }
            }
        }
    }
}

/// Tests a view `[3, 4, 256]` inside a tensor `[3, 6, 256]`. After every four rows, the view skips two rows.
fn two_levels(device: &Device) {
    let x: Vec<f32> = values(&mut random(seed()), 3 * 6 * 256);
    let inside: Vec<f32> = (0..3).flat_map(|i| x[(i * 6 + 1) * 256..(i * 6 + 5) * 256].to_vec()).collect();
    let from = device.upload(&x).unwrap();
    let shape = [3, 4, 256];
    for scaling in SCALINGS {
        let view = from.view_strided(256, &shape, &[6 * 256, 256, 1]).unwrap();
        let (scales_shape, strides) = scaling.layout(&shape);
        let count = (scales_shape[2] * 12) as usize;
        let (mut values, mut scales) =
            (device.alloc::<E4m3>(inside.len()).unwrap(), device.alloc::<f32>(count).unwrap());
        let (to, factors) =
            (values.view_mut(&shape).unwrap(), scales.view_strided_mut(0, &scales_shape, &strides).unwrap());
        quantize_fp8(device, view, scaling, to, factors, Stream::default()).unwrap();
        let [blocks, stride] = [scales_shape[2] as usize, strides[2] as usize];
        let memory = scales.download().unwrap();
        let got = Quantized {
            values: values.download().unwrap().iter().map(|value| value.to_bits()).collect(),
            scales: (0..12 * blocks).map(|at| memory[at / blocks + at % blocks * stride]).collect(),
        };
        same(&got, &reference::<f32, E4m3>(&inside, 256, scaling), 256);
    }
}

fn batch_invariance(device: &Device) {
    for cols in [5, 128, 1536, 3072] {
        let x: Vec<bf16> = values(&mut random(seed()), 37 * cols);
        for scaling in SCALINGS {
            case!("{cols} columns, {scaling:?}");
            let some = |first: usize, count: usize| {
                let shape = [count as i64, cols as i64];
                let x = &x[first * cols..(first + count) * cols];
                run::<bf16, E4m3>(device, x, shape, scaling, Layouts::dense(shape, scaling))
            };
            let (all, scales) = (some(0, 37), cols.div_ceil(group(scaling, cols)));
            for (first, count) in [(0, 1), (18, 7), (36, 1)] {
                let part = Quantized {
                    values: all.values[first * cols..(first + count) * cols].to_vec(),
                    scales: all.scales[first * scales..(first + count) * scales].to_vec(),
                };
                same(&some(first, count), &part, cols);
            }
        }
    }
}

/// Tests launch configurations of the kernels with one scale per row.
fn every_launch(device: &Device) {
    let (seed, scaling) = (seed(), Fp8Scaling::PerRow);
    for (packs_per_thread, max) in [(0, 512), (2, 256), (4, 512), (8, 1024)] {
        for team in [1, 2, 8, 32, 96, 512, 1024].into_iter().filter(|&team| team <= max) {
            let full = 8 * team * if packs_per_thread == 0 { 3 } else { packs_per_thread };
            for cols in [full, full - 8] {
                let (shape, rung) = ([5, i64::from(cols)], rung(0, packs_per_thread, team, team.max(32)));
                case!("{packs_per_thread} packs per thread, team {team}, {cols} columns");
                let x: Vec<bf16> = values(&mut random(seed), 5 * cols as usize);
                let device =
                    &device.with_override(LaunchOverride { rung: Some(rung), ..LaunchOverride::default() });
                let got = run::<bf16, E4m3>(device, &x, shape, scaling, Layouts::dense(shape, scaling));
                same(&got, &reference::<bf16, E4m3>(&x, cols as usize, scaling), cols as usize);
            }
        }
    }
}

/// Tests the f32 values at all boundaries between two codes, and next to the boundaries. A group contains the
/// largest value of the format, so that its scale is 1.
fn boundaries<E: Fp8 + Scalar>(device: &Device) {
    let decoded = |code: u8| E::from_bits(code).to_f32();
    let codes = (0..0x7f).take_while(|&code| decoded(code + 1).is_finite());
    let near = codes.flat_map(|code| {
        let middle = (decoded(code) + decoded(code + 1)) / 2.0;
        [decoded(code), middle.next_down(), middle, middle.next_up()]
    });
    let near: Vec<f32> = near.flat_map(|x| [x, -x]).collect();
    let x: Vec<f32> = near
        .chunks(127)
        .flat_map(|part| {
            let mut block = part.to_vec();
            block.resize(127, 0.0);
            block.push(-E::MAX);
            block
        })
        .collect();
    check::<f32, E>(device, &x, x.len());
    let shape = [1, x.len() as i64];
    let got =
        run::<f32, E>(device, &x, shape, Fp8Scaling::PerBlock, Layouts::dense(shape, Fp8Scaling::PerBlock));
    assert!(got.scales.iter().all(|&scale| scale == 1.0), "the scales are {:?}", got.scales);
}

/// A function that returns the element of a column. Its arguments are the column, and the largest and the
/// smallest positive number of the element type.
type Element3 = fn(usize, f32, f32) -> f32;

fn extremes<T: Element>(device: &Device) {
    let (largest, smallest) = match T::DTYPE {
        Dtype::F16 => (65_504.0, 2f32.powi(-24)),
        Dtype::Bf16 => (3.389_531_4e38, f32::from_bits(1 << 16)),
        _ => (f32::MAX, f32::from_bits(1)),
    };
    let kinds: [(&str, Element3); 8] = [
        ("zeros", |_, _, _| 0.0),
        ("negative zeros", |_, _, _| -0.0),
        ("the largest number", |_, largest, _| largest),
        ("the largest number and smaller ones", |c, largest, _| largest * 0.5f32.powi(c as i32 % 40)),
        ("the smallest number", |_, _, smallest| smallest),
        ("small numbers", |c, _, smallest| -smallest * (c % 600) as f32),
        ("the largest and the smallest number", |c, most, least| if c % 2 == 0 { most } else { -least }),
        ("one number", |c, largest, _| if c == 3 { -largest / 3.0 } else { 0.0 }),
    ];
    for (what, kind) in kinds {
        for cols in [5, 256, 1000, 4104] {
            case!("{cols} columns, {what}");
            let x: Vec<T> = (0..2 * cols).map(|at| T::from_f32(kind(at % cols, largest, smallest))).collect();
            assert!(x.iter().all(|x| x.to_f32().is_finite()), "the test needs finite numbers");
            check::<T, E4m3>(device, &x, cols);
            check::<T, E5m2>(device, &x, cols);
        }
    }
}

fn not_finite(device: &Device) {
    for cols in [40, 129, 4096] {
        let mut x = vec![bf16::ONE; 4 * cols];
        (x[cols + 3], x[2 * cols + 7]) = (bf16::NAN, bf16::NEG_INFINITY);
        (x[3 * cols], x[3 * cols + 1]) = (bf16::INFINITY, -bf16::NAN);
        check::<bf16, E4m3>(device, &x, cols);
        check::<bf16, E5m2>(device, &x, cols);
        for scaling in SCALINGS {
            case!("{cols} columns, {scaling:?}");
            let (shape, group) = ([4, cols as i64], group(scaling, cols).min(cols));
            let got = run::<bf16, E4m3>(device, &x, shape, scaling, Layouts::dense(shape, scaling));
            let (values, scales) = (&got.values, got.scales.len() / 4);
            assert!(values[cols..cols + group].iter().all(|&value| value == 0x7f), "a NaN reaches its group");
            assert!(got.scales[scales].is_nan() && got.scales[3 * scales].is_nan());
            assert_eq!((values[2 * cols + 7], got.scales[2 * scales]), (0x7f, f32::INFINITY));
            assert!(values[..cols].iter().all(|&value| value == 0x7e), "other rows are as ever");
            if group < cols {
                assert!(
                    values[cols + group..2 * cols].iter().all(|&value| value == 0x7e),
                    "other blocks too"
                );
            }
        }
    }
}
