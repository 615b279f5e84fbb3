//! Compares `rms_norm_gated` with f64 results. The tests also check after which steps the op rounds. The op
//! must return the same bits as a sequence of separate operators, each of which rounds its result.
use half::{bf16, f16};
use oxiwarp::{
    Device, Element, GateFunction, GateOrder, RmsNorm, RmsNormGated, Rounding, Stream, View, rms_norm_gated,
};
use oxiwarp_tests::alone::rows_stand_alone;
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, within_ulps};
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use crate::support::errors::says;
use crate::support::rms_norm_case::{self, AnyWeight, bound, reference};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("rms_norm_gated::f32_against_f64", against_f64::<f32>),
    ("rms_norm_gated::f16_against_f64", against_f64::<f16>),
    ("rms_norm_gated::bf16_against_f64", against_f64::<bf16>),
    ("rms_norm_gated::f32_layouts", layouts::<f32>),
    ("rms_norm_gated::bf16_layouts", layouts::<bf16>),
    ("rms_norm_gated::rounds_as_the_modules", roundings),
    ("rms_norm_gated::extremes", extremes),
    ("rms_norm_gated::rows_do_not_depend_on_each_other", batch_invariance),
    ("rms_norm_gated::bad_input", refuses),
];

const FUNCTIONS: [GateFunction; 2] = [GateFunction::Silu, GateFunction::Sigmoid];
const ORDERS: [GateOrder; 2] = [GateOrder::NormFirst, GateOrder::GateFirst];

/// Computes `f(gate)` in f64.
fn activated(function: GateFunction, gate: f64) -> f64 {
    let sigmoid = 1.0 / (1.0 + (-gate).exp());
    if function == GateFunction::Silu { gate * sigmoid } else { sigmoid }
}

/// Computes the formula in f64.
fn expected(x: &[f64], gate: &[f64], weight: Option<&[f64]>, cols: usize, params: RmsNormGated) -> Vec<f64> {
    let factors = || gate.iter().map(|&gate| activated(params.function, gate));
    if params.order == GateOrder::GateFirst {
        let product: Vec<f64> = x.iter().zip(factors()).map(|(x, f)| x * f).collect();
        return reference(&product, weight, cols, params.norm);
    }
    reference(x, weight, cols, params.norm).into_iter().zip(factors()).map(|(normed, f)| normed * f).collect()
}

fn run<T: Element>(
    device: &Device,
    x: &[T],
    gate: &[T],
    weight: Option<&AnyWeight<T>>,
    shape: [i64; 2],
    [read, write]: [Layout; 2],
    params: RmsNormGated,
) -> Vec<T> {
    let (x, gate) = (Matrix::upload(device, x, shape, read), Matrix::upload(device, gate, shape, read));
    let mut y = Matrix::<T>::poisoned(device, shape, write);
    let weight = weight.map(AnyWeight::view);
    rms_norm_gated(device, x.view(), gate.view(), weight, y.view_mut(), params, Stream::default())
        .expect("valid arguments");
    y.download()
}

/// Checks one shape and layout: both orders of norm and gate, both gate functions, without a weight and with
/// a weight of each dtype.
///
/// The gate function `f` adds 3 f32 ulp to the error of the norm. Of these, `expf` contributes 2 ulp, and the
/// sum and the division in `f` contribute 0.5 ulp each.
fn check<T: Element>(device: &Device, seed: u64, shape: [i64; 2], layouts: [Layout; 2]) {
    let (random, cols) = (&mut random(seed), shape[1] as usize);
    let len = shape[0] as usize * cols;
    let (x, gate): (Vec<T>, Vec<T>) = (values(random, len), values(random, len));
    let (same, single): (Vec<T>, Vec<f32>) = (values(random, cols), values(random, cols));
    let dense = Layout::dense(cols as i64);
    let weights = [
        None,
        Some((wide(&same), AnyWeight::Same(Matrix::upload(device, &same, [1, cols as i64], dense)))),
        Some((wide(&single), AnyWeight::F32(Matrix::upload(device, &single, [1, cols as i64], dense)))),
    ];
    let allowed = bound::<T>() + if size_of::<T>() == 4 { 6.0 } else { 0.01 };
    for (i, weight) in weights.iter().enumerate() {
        for order in ORDERS {
            let function = FUNCTIONS[(i + usize::from(order == GateOrder::NormFirst)) % 2];
            let params = RmsNormGated { norm: RmsNorm::default(), function, order };
            let (values, view) = weight.as_ref().map(|(values, view)| (&values[..], view)).unzip();
            let y = run(device, &x, &gate, view, shape, layouts, params);
            let right = expected(&wide(&x), &wide(&gate), values, cols, params);
            within_ulps(&y, &right, cols, allowed);
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

/// Tests rows with gaps and unaligned base addresses.
fn layouts<T: Element>(device: &Device) {
    let seed = seed();
    for cols in [1, 64, 129, 2048] {
        let kinds = [
            Layout::dense(cols),
            Layout { offset: 16, stride: cols + 64 },
            Layout { offset: 1, stride: cols + 1 },
        ];
        for read in kinds {
            for write in kinds {
                case!("{cols} columns, {read:?} to {write:?}");
                check::<T>(device, seed, [5, cols], [read, write]);
            }
        }
    }
}

/// Compares the bits of the op with the sequence of operators that models run. The host computes the expected
/// values from the result of `rms_norm` and from the gate function `f(gate)` in f32.
fn roundings(device: &Device) {
    let (rows, cols, random) = (7_usize, 640_usize, &mut random(seed()));
    let (shape, dense) = ([rows as i64, cols as i64], [Layout::dense(cols as i64); 2]);
    let (x, gate): (Vec<bf16>, Vec<bf16>) = (values(random, rows * cols), values(random, rows * cols));
    let weight: Vec<bf16> = values(random, cols);
    let matrix = AnyWeight::Same(Matrix::upload(device, &weight, [1, cols as i64], dense[0]));
    let single: Vec<f32> = weight.iter().map(|weight| weight.to_f32()).collect();
    let single = AnyWeight::F32(Matrix::upload(device, &single, [1, cols as i64], dense[0]));
    let norm = RmsNorm { rounding: Rounding::BeforeWeight, ..RmsNorm::default() };
    let infinite = vec![bf16::INFINITY; rows * cols];
    for function in FUNCTIONS {
        let params = RmsNormGated { norm, function, order: GateOrder::NormFirst };
        // The sigmoid of an infinite gate is 1, so the result must have the bits of `rms_norm`.
        let open = RmsNormGated { function: GateFunction::Sigmoid, ..params };
        let alone = rms_norm_case::run(device, &x, Some(&matrix), shape, dense, norm);
        same_bits(&run(device, &x, &infinite, Some(&matrix), shape, dense, open), &alone);
        // The product of normalized row and weight is rounded before it is multiplied by `f(gate)`. If the
        // weight is in f32, this product is not rounded.
        let f = |at: usize| activated(function, f64::from(gate[at].to_f32())) as f32;
        let same = run(device, &x, &gate, Some(&matrix), shape, dense, params);
        flips(&same, |at| bf16::from_f32(alone[at].to_f32() * f(at)));
        let bare = rms_norm_case::run(device, &x, None, shape, dense, norm);
        let product = |at: usize| bare[at].to_f32() * weight[at % cols].to_f32();
        let mixed = run(device, &x, &gate, Some(&single), shape, dense, params);
        flips(&mixed, |at| bf16::from_f32(product(at) * f(at)));
        // With `GateFirst`, the norm gets the unrounded f32 product of `x` and `f(gate)`. The normalized row
        // is rounded before it is multiplied by the weight.
        let first = RmsNormGated { order: GateOrder::GateFirst, ..params };
        let gated: Vec<f32> = (0..x.len()).map(|at| x[at].to_f32() * f(at)).collect();
        let normed = rms_norm_case::run(device, &gated, None, shape, dense, RmsNorm::default());
        let y = run(device, &x, &gate, Some(&matrix), shape, dense, first);
        let rounded = |at: usize| bf16::from_f32(normed[at]).to_f32();
        flips(&y, |at| bf16::from_f32(rounded(at) * weight[at % cols].to_f32()));
    }
}

/// Panics if more than one value in 500 differs from its expected value. A few values may differ, because
/// `expf` has an error of up to 2 f32 ulp, which can change the rounding to bf16.
#[track_caller]
fn flips(got: &[bf16], expected: impl Fn(usize) -> bf16) {
    let differ = (0..got.len()).filter(|&at| got[at] != expected(at)).count();
    assert!(differ * 500 <= got.len(), "{differ} of {} differ", got.len());
}

/// Tests gates for which the gate function is 0, gates near the lowest f32 number, and a NaN in the gate. The
/// NaN must affect only its own row.
fn extremes(device: &Device) {
    let cols = 1024;
    let shape = [3, cols as i64];
    for order in ORDERS {
        let params = RmsNormGated { order, ..RmsNormGated::default() };
        let (x, mut gate) = (vec![1.0_f32; 3 * cols], vec![1.0_f32; 3 * cols]);
        gate[..cols].fill(-200.0);
        (gate[5], gate[cols + 3]) = (-3e38, f32::NAN);
        let y = run(device, &x, &gate, None, shape, [Layout::dense(shape[1]); 2], params);
        assert!(y[..cols].iter().all(|&y| y == 0.0), "{order:?}: a closed gate leaves {:?}", &y[..8]);
        let open = if order == GateOrder::GateFirst { 1.0 } else { activated(GateFunction::Silu, 1.0) };
        within_ulps(&y[2 * cols..], &vec![open; cols], cols, bound::<f32>() + 6.0);
        let nan = y[cols..2 * cols].iter().filter(|y| y.is_nan()).count();
        assert_eq!(nan, if order == GateOrder::GateFirst { cols } else { 1 }, "{order:?}");
    }
}

fn batch_invariance(device: &Device) {
    for order in ORDERS {
        let params = RmsNormGated { order, ..RmsNormGated::default() };
        rows_stand_alone(&[5, 128, 1536, 3072, 9000, 30_000], |x, shape| {
            [run(device, x, x, None, shape, [Layout::dense(shape[1]); 2], params)]
        });
    }
}

fn refuses(device: &Device) {
    let x = device.upload(&[1.0_f32; 64]).unwrap();
    let half = device.upload(&[f16::ONE; 64]).unwrap();
    let mut y = device.alloc::<f32>(64).unwrap();
    let whole = || x.view(&[4, 16]).unwrap();
    let mut refuses = |gate: View, weight: Option<View>, params: RmsNormGated, text: &str| {
        let y = y.view_mut(&[4, 16]).unwrap();
        says(rms_norm_gated(device, whole(), gate, weight, y, params, Stream::default()), text);
    };
    let good = RmsNormGated::default();
    refuses(x.view(&[4, 8]).unwrap(), None, good, "rms_norm_gated: gate has shape [4, 8], expected [4, 16]");
    refuses(half.view(&[4, 16]).unwrap(), None, good, "rms_norm_gated: gate is f16, expected f32");
    refuses(whole(), Some(half.view(&[16]).unwrap()), good, "weight is f16, expected f32");
    refuses(whole(), Some(x.view(&[8]).unwrap()), good, "weight has shape [8], expected [16]");
    let eps = RmsNormGated { norm: RmsNorm { eps: -1.0, ..good.norm }, ..good };
    refuses(whole(), None, eps, "rms_norm_gated: eps is -1");
    let gate = device.upload(&[0.5_f32; 64]).unwrap();
    let gate = gate.view(&[4, 16]).unwrap();
    // SAFETY: this writable view covers the memory of the gate, which is alive. The op rejects the overlap
    // before it accesses the memory.
    let on_gate =
        unsafe { oxiwarp::ViewMut::from_raw(gate.ptr().cast_mut(), gate.dtype(), &[4, 16], &[16, 1]) }
            .unwrap();
    says(
        rms_norm_gated(device, whole(), gate, None, on_gate, good, Stream::default()),
        "rms_norm_gated: out overlaps gate",
    );
    assert!(y.download().unwrap().iter().all(|y| y.is_nan()), "something was written");
}
