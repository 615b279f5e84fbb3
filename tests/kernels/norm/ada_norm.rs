//! Compares `ada_norm` with f64 results. The tests cover the shapes of `tests/shapes.json`, the combinations
//! of operands and dtypes in `forms()`, and several memory layouts.
use half::{bf16, f16};
use oxiwarp::{AdaNorm, Device, Element, LaunchOverride, Norm, Overridable as _, Rounding};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::Layout;

use crate::support::ada_norm_case::{PARAMS, check};
use crate::support::modulations::{ModulationCase, forms, in_batches};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("ada_norm::f32_against_f64", against_f64::<f32>),
    ("ada_norm::f16_against_f64", against_f64::<f16>),
    ("ada_norm::bf16_against_f64", against_f64::<bf16>),
    ("ada_norm::f32_forms", every_form::<f32>),
    ("ada_norm::f16_forms", every_form::<f16>),
    ("ada_norm::bf16_forms", every_form::<bf16>),
    ("ada_norm::f32_layouts", layouts::<f32>),
    ("ada_norm::f16_layouts", layouts::<f16>),
    ("ada_norm::bf16_layouts", layouts::<bf16>),
    ("ada_norm::f32_held", in_registers::<f32>),
    ("ada_norm::f16_held", in_registers::<f16>),
    ("ada_norm::bf16_held", in_registers::<bf16>),
];

/// Checks every shape with a few combinations of operands.
fn against_f64<T: Element>(device: &Device) {
    let (seed, forms) = (seed(), forms());
    for (i, shape) in shapes().into_iter().enumerate() {
        let dense = [Layout::dense(shape.cols); 2];
        for j in 0..4 {
            let (params, operands) = (PARAMS[(i + j) % 6], forms[(i * 31 + j * 7) % forms.len()]);
            case!("{} x {} ({}), {operands:?}", shape.rows, shape.cols, shape.why);
            check::<T>(device, seed, in_batches(shape.rows, shape.cols), dense, operands, params);
        }
    }
}

/// Checks all combinations of operands in `forms()`, for two row lengths. Each combination is checked with
/// LayerNorm and RMSNorm, and in exact and fast mode.
fn every_form<T: Element>(device: &Device) {
    let seed = seed();
    for cols in [7, 260] {
        for (i, operands) in forms().into_iter().enumerate() {
            case!("{cols} columns, {operands:?}");
            for params in PARAMS.into_iter().skip(i % 2).step_by(2) {
                check::<T>(device, seed, [2, 3, cols], [Layout::dense(cols); 2], operands, params);
            }
        }
    }
}

/// Tests that rows with gaps and unaligned base addresses give the same bits as contiguous rows.
fn layouts<T: Element>(device: &Device) {
    let (seed, forms) = (seed(), forms());
    for cols in [64, 129, 640, 25_000] {
        let dense = Layout::dense(cols);
        let (gaps, odd) = (Layout { offset: 16, stride: cols + 64 }, Layout { offset: 1, stride: cols + 3 });
        for (i, operands) in forms.iter().step_by(if cols > 640 { 40 } else { 4 }).enumerate() {
            let params = PARAMS[i % 6];
            let packed = check::<T>(device, seed, [2, 3, cols], [dense; 2], *operands, params);
            for layouts in [[gaps; 2], [odd; 2], [dense, odd]] {
                case!("{cols} columns, {layouts:?}, {operands:?}");
                same_bits(&check::<T>(device, seed, [2, 3, cols], layouts, *operands, params), &packed);
            }
        }
    }
}

/// Checks the kernels that keep rows in registers. Such kernels exist only for some row lengths and some
/// combinations of operands.
///
/// The results are compared with a computation in f64. For unaligned base addresses, the op must run another
/// kernel, which must give the same bits.
fn in_registers<T: Element>(device: &Device) {
    let (seed, usual) = (seed(), ModulationCase::USUAL);
    let forms = [
        usual,
        ModulationCase { shift: false, ..usual },
        ModulationCase { table: Some(false), ..usual },
        ModulationCase { single: true, ..usual },
        ModulationCase { single: true, parameters: [Some(true); 2], ..usual },
        ModulationCase { parameters: [Some(false); 2], ..usual },
    ];
    for cols in [1536, 2048, 3072, 5120] {
        let (dense, odd) = (Layout::dense(cols), Layout { offset: 1, stride: cols + 3 });
        for operands in forms {
            for params in PARAMS {
                case!("{cols} columns, {operands:?}, {params:?}");
                let [(in_registers, by), (read, not_by)] = [dense, odd].map(|layout| {
                    let device = device.with_override(LaunchOverride::default());
                    let y = check::<T>(&device, seed, [2, 3, cols], [layout; 2], operands, params);
                    (y, device.take_launches().concat())
                });
                same_bits(&in_registers, &read);
                if let Some(kernel) = kernel::<T>(params, cols, operands) {
                    let is_it = |launch: &str| launch.starts_with(&format!("ada_norm_{kernel} "));
                    assert!(
                        is_it(&by) && !is_it(&not_by),
                        "{by} and {not_by}, expected {kernel} and another"
                    );
                }
            }
        }
    }
}

/// Returns the part of the kernel's name after `ada_norm_`, for the kernel that keeps the row in registers.
/// Returns `None` if no such kernel exists for these operands.
fn kernel<T: Element>(params: AdaNorm, cols: i64, operands: ModulationCase) -> Option<&'static str> {
    // For f32 rows, an f32 operand has the rows' type.
    let is_half = size_of::<T>() < 4;
    let single = operands.single && is_half;
    if params.norm == Norm::Rms && params.rounding == Rounding::Once {
        return None;
    }
    match (params.norm, cols, single, operands.table, operands.parameters) {
        (Norm::Layer, 1536, false, None, [None, None]) => Some("layer_same_warp12"),
        (Norm::Layer, 1536, true, None, [None, None]) => Some("layer_f32_warp12"),
        (Norm::Layer, 3072, false, None, [None, None]) => Some("layer_same_block6"),
        (Norm::Layer, 3072, false, None, [Some(false), Some(false)]) if is_half => {
            Some("layer_affine_block6")
        }
        (Norm::Layer, 5120, true, None, [None, None]) => Some("layer_f32_block10"),
        (Norm::Rms, 2048, false, None, [None, None]) => Some("rms_same_block4"),
        (Norm::Rms, 2048, false, Some(false), [None, None]) => Some("rms_tabled_block4"),
        _ => None,
    }
}
