//! Tests `linear_activation`, `linear_gated_activation` and `linear_gated_residual`. Each kernel must give
//! the bits of the two separate ops. The results are also compared with f64.
use half::{bf16, f16};
use oxiwarp::{Activation, Device, Element, Gate, Overridable as _, Roundings};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::operand::{Form, Kind, Operand};
use oxiwarp_tests::tensor::{Layout, Matrix, random, values};

use super::linear::skipping;
use crate::support::activation_case::{allowed, reference, within};
use crate::support::epilogue_case::{Epilogue, product};
use crate::support::linear_case::{LinearCase, LinearInputs, Placement};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("linear_activation::functions", functions),
    ("linear_activation::f16_bits", activation_bits::<f16>),
    ("linear_activation::bf16_bits", activation_bits::<bf16>),
    ("linear_activation::f16_against_f64", activation_f64::<f16>),
    ("linear_activation::bf16_against_f64", activation_f64::<bf16>),
    ("linear_gated_activation::f16_bits", gated_bits::<f16>),
    ("linear_gated_activation::bf16_bits", gated_bits::<bf16>),
    ("linear_gated_activation::f16_against_f64", gated_f64::<f16>),
    ("linear_gated_activation::bf16_against_f64", gated_f64::<bf16>),
    ("linear_gated_residual::f16_bits", residual_bits::<f16>),
    ("linear_gated_residual::bf16_bits", residual_bits::<bf16>),
    ("linear_gated_residual::f16_against_f64", residual_f64::<f16>),
    ("linear_gated_residual::bf16_against_f64", residual_f64::<bf16>),
    ("linear_gated_residual::f16_gates", gates::<f16>),
    ("linear_gated_residual::bf16_gates", gates::<bf16>),
    ("linear_gated_residual::layouts", residual_layouts),
];

const FUNCTIONS: [Activation; 4] =
    [Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::GeluQuick];

/// Sizes M, N and K around the tile sizes of all kernels. N is a multiple of 16.
const SIZES: [[i64; 3]; 6] =
    [[130, 144, 200], [65, 80, 104], [257, 48, 72], [1, 16, 8], [33, 400, 24], [70, 208, 136]];

/// Returns the number of kernels of an op with an epilogue. The op has `hopper` kernels for Hopper, and three
/// for all GPUs.
fn kernels(device: &Device, hopper: usize) -> usize {
    let is_hopper = device.arch().is_none() || device.capability() == Some((9, 0));
    3 + if is_hopper { hopper } else { 0 }
}

/// Checks that every kernel gives the bits of `linear` followed by the separate op of the epilogue. The tuple
/// has the name of the op, and the tile sizes of its kernels for Hopper and for all GPUs. The test fails if
/// one of these kernels did not run.
fn same_as_separate<T: Element>(
    device: &Device,
    cases: &[LinearCase],
    (op, hopper, portable): (&str, &[&str], [&str; 3]),
    epilogue: impl Fn(&LinearCase, &mut dyn FnMut(Epilogue<T>)),
) {
    let mut names: Vec<String> = vec![];
    // A call has a choice among the other kernels and at most one kernel for few rows.
    let few_rows = hopper.iter().filter(|tile| tile.starts_with("64x")).count();
    let choices = hopper.len() - few_rows.saturating_sub(1);
    for p in cases {
        let inputs = LinearInputs::<T>::new(device, p);
        let product = product(device, &inputs, p);
        epilogue(p, &mut |epilogue| {
            let expected = epilogue.apply(device, &product, p);
            for skip in 0..kernels(device, choices) {
                case!("{p:?}, skip {skip}");
                let device = skipping(device, skip);
                same_bits(&epilogue.run(&device, &inputs, p, Roundings::Exact), &expected);
                names.extend(device.take_launches());
            }
        });
    }
    let hopper = if kernels(device, choices) > 3 { hopper } else { &[] };
    let hopper = hopper.iter().map(|tile| format!("{op}_hopper_{tile}_smem "));
    for kernel in hopper.chain(portable.iter().map(|tile| format!("{op}_{tile}_smem "))) {
        assert!(names.iter().any(|name| name.starts_with(&kernel)), "{kernel}is not in {names:?}");
    }
}

const ACTIVATION: (&str, &[&str], [&str; 3]) = (
    "linear_activation",
    &["128x128", "128x192", "192x192", "256x128", "64x16", "64x16_half", "64x32", "64x32_half", "64x64"],
    ["128x128", "64x64", "64x64_general"],
);
const GATED: (&str, &[&str], [&str; 3]) =
    ("linear_gated_activation", &["128x128", "128x256", "256x128"], ["128x128", "64x128", "64x128_general"]);
const RESIDUAL: (&str, &[&str], [&str; 3]) =
    ("linear_gated_residual", ACTIVATION.1, ["128x128", "64x64", "64x64_general"]);

fn cases() -> Vec<LinearCase> {
    SIZES.iter().map(|sizes| LinearCase::of(*sizes, sizes[0] % 2 == 1)).collect()
}

/// Sizes for the kernels for few rows.
const FEW_ROWS: [[i64; 3]; 5] =
    [[15, 200, 1400], [17, 264, 72], [64, 136, 200], [31, 8328, 24], [49, 8200, 24]];

fn cases_with_few_rows() -> Vec<LinearCase> {
    let few_rows = FEW_ROWS.iter().map(|sizes| LinearCase::of(*sizes, sizes[0] % 2 == 1));
    cases().into_iter().chain(few_rows).collect()
}

/// Tests every activation function of the op, with one kernel for Hopper and one for other GPUs.
fn functions(device: &Device) {
    let more =
        [Activation::GeluCuda13_2, Activation::GeluNew, Activation::GeluFast, Activation::Fatrelu(0.5)];
    let p = LinearCase::of([33, 48, 40], true);
    fn check<T: Element>(device: &Device, p: &LinearCase, f: Activation) {
        let inputs = LinearInputs::<T>::new(device, p);
        let product = product(device, &inputs, p);
        for epilogue in
            [Epilogue::Activation(f), Epilogue::Gated(f, Gate::First), Epilogue::Gated(f, Gate::Second)]
        {
            let expected = epilogue.apply(device, &product, p);
            for skip in [0, 5] {
                case!("{f:?}, skip {skip}");
                let got = epilogue.run(&skipping(device, skip), &inputs, p, Roundings::Exact);
                same_bits(&got, &expected);
            }
        }
    }
    for f in FUNCTIONS.into_iter().chain(more) {
        check::<f16>(device, &p, f);
        check::<bf16>(device, &p, f);
    }
}

fn activation_bits<T: Element>(device: &Device) {
    let wide = Placement { offset: 0, gap: 8 };
    let odd = Placement { offset: 1, gap: 3 };
    let p = LinearCase::of([67, 72, 40], true);
    let mut cases = cases_with_few_rows();
    cases.extend([LinearCase { x: wide, y: wide, ..p }, LinearCase { y: odd, bias_offset: 1, ..p }]);
    same_as_separate::<T>(device, &cases, ACTIVATION, |p, run| {
        run(Epilogue::Activation(FUNCTIONS[p.m as usize % 4]));
    });
}

fn gated_bits<T: Element>(device: &Device) {
    let wide = Placement { offset: 0, gap: 8 };
    let odd = Placement { offset: 1, gap: 3 };
    let p = LinearCase::of([67, 80, 40], true);
    let mut cases = cases();
    cases.extend([
        LinearCase { x: wide, weight: wide, y: wide, ..p },
        LinearCase { weight: odd, y: odd, ..p },
    ]);
    cases.push(LinearCase { bias_offset: 1, ..p });
    same_as_separate::<T>(device, &cases, GATED, |p, run| {
        for gate in [Gate::First, Gate::Second] {
            run(Epilogue::Gated(FUNCTIONS[p.m as usize % 4], gate));
        }
    });
}

/// Makes a residual with random values.
fn residual_of<T: Element>(device: &Device, p: &LinearCase, place: Placement) -> (Matrix<T>, Vec<T>) {
    let residual: Vec<T> = values(&mut random(seed() + 1), (p.m * p.n) as usize);
    let layout = Layout { offset: place.offset, stride: p.n + place.gap };
    (Matrix::upload(device, &residual, [p.m, p.n], layout), residual)
}

const DENSE: Placement = Placement { offset: 0, gap: 0 };

fn residual_bits<T: Element>(device: &Device) {
    // With the last size, each warp writes more tiles than it has staging buffers.
    let mut cases = cases_with_few_rows();
    cases.push(LinearCase::of([600, 400, 72], true));
    same_as_separate::<T>(device, &cases, RESIDUAL, |p, run| {
        let (residual, _) = residual_of(device, p, DENSE);
        let kind = Kind { form: Form::Vector, single: false, offset: 0 };
        let gate = Operand::<T>::new(device, &mut random(seed() + 2), [1, p.m, p.n], kind);
        for gate in [None, Some(gate.view())] {
            run(Epilogue::Residual { residual: &residual, gate, batches: 1 });
        }
    });
}

/// Tests gates of all shapes and dtypes. Each batch has an odd number of rows, so a tile can have rows of two
/// batches.
fn gates<T: Element>(device: &Device) {
    let cases = [135, 45].map(|rows| LinearCase::of([rows, 72, 24], true));
    let (op, tiles, portable) = RESIDUAL;
    let tiles: Vec<_> =
        tiles.iter().copied().filter(|tile| !tile.starts_with("64x") || *tile == "64x32_half").collect();
    same_as_separate::<T>(device, &cases, (op, &tiles, portable), |p, run| {
        let (residual, _) = residual_of(device, p, DENSE);
        let forms = [Form::Vector, Form::Batch, Form::BatchSlice, Form::Token, Form::TokenSlice];
        for (form, single) in forms.iter().flat_map(|form| [(*form, false), (*form, true)]) {
            for (offset, columns) in [(0, p.n), (1, p.n), (0, 1)] {
                let kind = Kind { form, single, offset };
                let gate = Operand::<T>::new(device, &mut random(seed() + 2), [3, p.m / 3, columns], kind);
                run(Epilogue::Residual { residual: &residual, gate: Some(gate.view()), batches: 3 });
            }
        }
    });
}

/// Tests residuals with gaps between rows, and with rows that are not aligned.
fn residual_layouts(device: &Device) {
    let p = LinearCase::of([67, 72, 40], true);
    for place in [[0, 8], [0, 24], [0, 2], [0, 1], [1, 0], [2, 0], [8, 0]] {
        let place = Placement { offset: place[0], gap: place[1] as i64 };
        let inputs = LinearInputs::<bf16>::new(device, &p);
        let (residual, _) = residual_of(device, &p, place);
        let epilogue = Epilogue::Residual { residual: &residual, gate: None, batches: 1 };
        let expected = epilogue.apply(device, &product(device, &inputs, &p), &p);
        for skip in 0..kernels(device, 5) {
            case!("{place:?}, skip {skip}");
            let got = epilogue.run(&skipping(device, skip), &inputs, &p, Roundings::Exact);
            same_bits(&got, &expected);
        }
    }
}

/// Returns each element of `x wᵀ + bias` in f64, with the allowed error of the kernel's f32 accumulator.
fn sums<T: Element>(inputs: &LinearInputs<T>, p: &LinearCase) -> Vec<(f64, f64)> {
    let error = |size: f64| size * (p.k as f64 / 16.0 + 2.0) * 2.0_f64.powi(-22);
    inputs.expected.iter().map(|&(value, size)| (value, error(size))).collect()
}

/// Returns half an ulp of `value` in `T`, the error of one rounding.
fn rounding<T: Element>(value: f64) -> f64 {
    0.5 * oxiwarp_tests::compare::ulp(T::DTYPE, value.abs())
}

const ROUNDS: [Roundings; 2] = [Roundings::Exact, Roundings::Once];

/// Returns each element of `x wᵀ + bias` in f64, with the allowed error of the value from which the epilogue
/// computes. In exact mode, the kernel rounds this value to the element type.
fn inputs_of_epilogue<T: Element>(sums: &[(f64, f64)], rounds: Roundings) -> Vec<(f64, f64)> {
    let rounded = |value: f64, error: f64| match rounds {
        Roundings::Exact => error + rounding::<T>(value.abs() + error),
        _ => error,
    };
    sums.iter().map(|&(value, error)| (value, rounded(value, error))).collect()
}

/// The largest slope of the activation functions of this test, rounded up.
const SLOPE: f64 = 1.2;

fn activation_f64<T: Element>(device: &Device) {
    let p = LinearCase::of([70, 72, 136], true);
    let inputs = LinearInputs::<T>::new(device, &p);
    for (f, rounds) in FUNCTIONS.iter().flat_map(|f| ROUNDS.map(|rounds| (*f, rounds))) {
        let sums = inputs_of_epilogue::<T>(&sums(&inputs, &p), rounds);
        let expected: Vec<f64> = sums.iter().map(|(sum, _)| reference(f, *sum)).collect();
        for skip in 0..kernels(device, 5) {
            case!("{f:?}, {rounds:?}, skip {skip}");
            let got = Epilogue::Activation(f).run(&skipping(device, skip), &inputs, &p, rounds);
            within(&got, &expected, |i| {
                SLOPE * sums[i].1 * 1.01 + allowed::<T>(f, rounds, expected[i], sums[i].0)
            });
        }
    }
}

fn gated_f64<T: Element>(device: &Device) {
    let p = LinearCase::of([70, 80, 136], true);
    let inputs = LinearInputs::<T>::new(device, &p);
    let (n, h) = (p.n as usize, p.n as usize / 2);
    for (gate, rounds) in [Gate::First, Gate::Second].iter().flat_map(|g| ROUNDS.map(|rounds| (*g, rounds))) {
        let f = Activation::Silu;
        let sums = inputs_of_epilogue::<T>(&sums(&inputs, &p), rounds);
        let pair = |i: usize| {
            let [first, second] = [0, h].map(|half| sums[i / h * n + half + i % h]);
            if gate == Gate::First { [first, second] } else { [second, first] }
        };
        let expected: Vec<f64> = (0..70 * h)
            .map(|i| {
                let [gate, up] = pair(i);
                reference(f, gate.0) * up.0
            })
            .collect();
        for skip in 0..kernels(device, 3) {
            case!("{gate:?}, {rounds:?}, skip {skip}");
            let got = Epilogue::Gated(f, gate).run(&skipping(device, skip), &inputs, &p, rounds);
            within(&got, &expected, |i| {
                let [gate, up] = pair(i);
                let f = reference(f, gate.0);
                let of_gate = SLOPE * gate.1 + 2.0_f64.powi(-20) * gate.0.abs();
                let exact = rounds == Roundings::Exact;
                let of_f = of_gate + if exact { rounding::<T>(f.abs() + of_gate) } else { 0.0 };
                let inner = of_f * (up.0.abs() + up.1) + f.abs() * up.1;
                1.01 * (inner + rounding::<T>(expected[i].abs() + inner)) + 1e-7
            });
        }
    }
}

fn residual_f64<T: Element>(device: &Device) {
    let p = LinearCase::of([70, 72, 136], true);
    let inputs = LinearInputs::<T>::new(device, &p);
    let (residual, values) = residual_of::<T>(device, &p, DENSE);
    for (single, rounds) in [false, true].iter().flat_map(|single| ROUNDS.map(|rounds| (*single, rounds))) {
        let kind = Kind { form: Form::Token, single, offset: 0 };
        let gate = Operand::<T>::new(device, &mut random(seed() + 2), [1, p.m, p.n], kind);
        let sums = inputs_of_epilogue::<T>(&sums(&inputs, &p), rounds);
        let term = |i: usize| f64::from(gate.at(i)) * sums[i].0;
        let expected: Vec<f64> = (0..sums.len()).map(|i| f64::from(values[i].to_f32()) + term(i)).collect();
        let epilogue = Epilogue::Residual { residual: &residual, gate: Some(gate.view()), batches: 1 };
        for skip in 0..kernels(device, 5) {
            case!("{single}, {rounds:?}, skip {skip}");
            let got = epilogue.run(&skipping(device, skip), &inputs, &p, rounds);
            within(&got, &expected, |i| {
                let each = rounds == Roundings::Exact && !single;
                let of_sum = f64::from(gate.at(i)).abs() * sums[i].1;
                let size = term(i).abs() + of_sum;
                let inner = of_sum + if each { rounding::<T>(size) } else { 2.0_f64.powi(-22) * size };
                1.01 * (inner + rounding::<T>(expected[i].abs() + inner)) + 2.0_f64.powi(-22)
            });
        }
    }
}
