//! `ada_norm` against f64: the table of shapes, every form of its operands, layouts.
use half::{bf16, f16};
use oxiwarp::{AdaNorm, Affine, Choice, Device, Element, Norm, ScaleShift, Stream, ada_norm};
use oxiwarp_tests::approx::{Approx, close, normed};
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::operand::Norming;
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, seed, values, wide};

use crate::Test;
use crate::support::modulations::{Beside, forms, in_batches};

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
    ("ada_norm::f32_held", held::<f32>),
    ("ada_norm::f16_held", held::<f16>),
    ("ada_norm::bf16_held", held::<bf16>),
];

/// Both norms, in both modes.
pub const PARAMS: [AdaNorm; 4] = [
    AdaNorm { norm: Norm::Layer, eps: 1e-6, exact: true },
    AdaNorm { norm: Norm::Rms, eps: 1e-6, exact: true },
    AdaNorm { norm: Norm::Layer, eps: 1e-6, exact: false },
    AdaNorm { norm: Norm::Rms, eps: 1e-6, exact: false },
];

/// Runs the op over fresh memory and returns its result.
pub fn run<T: Element>(
    device: &Device,
    x: &[T],
    (affine, by): (Affine, ScaleShift),
    [batch, tokens, cols]: [i64; 3],
    [layout_x, layout_y]: [Layout; 2],
    params: AdaNorm,
) -> Vec<T> {
    let x = Matrix::upload(device, x, [batch * tokens, cols], layout_x);
    let mut y = Matrix::<T>::poisoned(device, [batch * tokens, cols], layout_y);
    let (x, out) = (x.view_batches(batch), y.view_batches_mut(batch));
    ada_norm(device, x, affine, by, out, params, Stream::default()).expect("valid arguments");
    y.download()
}

/// The formula, with the roundings of separate operators or without.
fn reference<T: Element>(x: &[T], by: &Norming<T>, cols: usize, params: AdaNorm) -> Vec<Approx> {
    let round_each = params.exact && !by.is_single();
    let round = |y: Approx, wanted: bool| if wanted { y.rounded(T::DTYPE) } else { y };
    // LayerNorm is one operator with its parameters, RMSNorm one for each.
    let (step, in_norm) = (round_each, round_each && params.norm == Norm::Rms);
    let one = |(at, n): (usize, Approx)| {
        let mut y = round(n, in_norm);
        if let Some(weight) = &by.weight {
            y = round(y.times(Approx::exact(weight.at(at % cols).into())), in_norm);
        }
        if let Some(bias) = &by.bias {
            y = round(y.plus(Approx::exact(bias.at(at % cols).into())), in_norm);
        }
        let scale = Approx::exact(1.0).plus(Approx::exact(by.scale.at(at).into()));
        y = round(round(y, step).times(round(scale, step)), step);
        if let Some(shift) = &by.shift {
            y = round(y.plus(Approx::exact(shift.at(at).into())), step);
        }
        y.rounded(T::DTYPE)
    };
    normed(&wide(x), cols, params.norm, params.eps).into_iter().enumerate().map(one).collect()
}

/// One shape and layout; returns the result.
pub fn check<T: Element>(
    device: &Device,
    seed: u64,
    shape: [i64; 3],
    layouts: [Layout; 2],
    beside: Beside,
    params: AdaNorm,
) -> Vec<T> {
    let (random, cols) = (&mut random(seed), shape[2] as usize);
    let x: Vec<T> = values(random, (shape[0] * shape[1]) as usize * cols);
    let by = beside.make(device, random, shape, layouts[0].offset);
    let y = run(device, &x, by.views(), shape, layouts, params);
    close(&y, &reference(&x, &by, cols, params), cols);
    y
}

/// Every shape with a few forms of the operands.
fn against_f64<T: Element>(device: &Device) {
    let (seed, forms) = (seed(), forms());
    for (i, shape) in shapes().into_iter().enumerate() {
        let dense = [Layout::dense(shape.cols); 2];
        for (j, params) in PARAMS.into_iter().enumerate() {
            let beside = forms[(i * 31 + j * 7) % forms.len()];
            eprintln!("{} x {} ({}), {beside:?}, OXIWARP_SEED={seed}", shape.rows, shape.cols, shape.why);
            check::<T>(device, seed, in_batches(shape.rows, shape.cols), dense, beside, params);
        }
    }
}

/// A few shapes with every form of the operands, in every mode.
fn every_form<T: Element>(device: &Device) {
    let seed = seed();
    for cols in [7, 260] {
        for beside in forms() {
            eprintln!("{cols} columns, {beside:?}, OXIWARP_SEED={seed}");
            for params in PARAMS {
                check::<T>(device, seed, [2, 3, cols], [Layout::dense(cols); 2], beside, params);
            }
        }
    }
}

/// Rows with gaps and bases that are not aligned: the same bits as packed ones.
fn layouts<T: Element>(device: &Device) {
    let (seed, forms) = (seed(), forms());
    for cols in [64, 129, 640, 25_000] {
        let dense = Layout::dense(cols);
        let (gaps, odd) = (Layout { offset: 16, stride: cols + 64 }, Layout { offset: 1, stride: cols + 3 });
        for (i, beside) in forms.iter().step_by(if cols > 640 { 40 } else { 4 }).enumerate() {
            let params = PARAMS[i % 4];
            let packed = check::<T>(device, seed, [2, 3, cols], [dense; 2], *beside, params);
            for layouts in [[gaps; 2], [odd; 2], [dense, odd]] {
                eprintln!("{cols} columns, {layouts:?}, {beside:?}, OXIWARP_SEED={seed}");
                same_bits(&check::<T>(device, seed, [2, 3, cols], layouts, *beside, params), &packed);
            }
        }
    }
}

/// Rows that have kernels of their own, which hold them in registers, in every form that these are for: the f64 formula,
/// and the bits of the kernel that reads one element at a time, for bases that are not aligned.
fn held<T: Element>(device: &Device) {
    let (seed, usual) = (seed(), Beside::USUAL);
    let forms = [
        usual,
        Beside { shift: false, ..usual },
        Beside { table: Some(false), ..usual },
        Beside { single: true, ..usual },
        Beside { single: true, parameters: [Some(true); 2], ..usual },
        Beside { parameters: [Some(false); 2], ..usual },
    ];
    for cols in [1536, 2048, 3072, 5120] {
        let (dense, odd) = (Layout::dense(cols), Layout { offset: 1, stride: cols + 3 });
        for beside in forms {
            for params in PARAMS {
                eprintln!("{cols} columns, {beside:?}, {params:?}, OXIWARP_SEED={seed}");
                let [(held, by), (read, not_by)] = [dense, odd].map(|layout| {
                    let device = device.with_choice(Choice::default());
                    let y = check::<T>(&device, seed, [2, 3, cols], [layout; 2], beside, params);
                    (y, device.take_launches().concat())
                });
                same_bits(&held, &read);
                if let Some(kernel) = kernel::<T>(params.norm, cols, beside) {
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

/// That of rows in registers, where there is one for the form.
fn kernel<T: Element>(norm: Norm, cols: i64, beside: Beside) -> Option<&'static str> {
    // For rows in f32 operands in f32 are of their own type.
    let is_half = size_of::<T>() < 4;
    let single = beside.single && is_half;
    match (norm, cols, single, beside.table, beside.parameters) {
        (Norm::Layer, 1536, false, None, [None, None]) => Some("layer_held12_same"),
        (Norm::Layer, 1536, true, None, [None, None]) => Some("layer_held12_single"),
        (Norm::Layer, 3072, false, None, [None, None]) => Some("layer_block6_same"),
        (Norm::Layer, 3072, false, None, [Some(false), Some(false)]) if is_half => {
            Some("layer_block6_affine")
        }
        (Norm::Layer, 5120, true, None, [None, None]) => Some("layer_block10_single"),
        (Norm::Rms, 2048, false, None, [None, None]) => Some("rms_team4_same"),
        (Norm::Rms, 2048, false, Some(false), [None, None]) => Some("rms_team4_tabled"),
        _ => None,
    }
}
