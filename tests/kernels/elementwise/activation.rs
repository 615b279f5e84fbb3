//! Tests `activation` and its gradient against f64, for the shapes of `tests/shapes.json`.
use half::{bf16, f16};
use oxiwarp::{Activation, Device, Element, Roundings, Stream, activation, activation_backward};
use oxiwarp_tests::alone::rows_stand_alone;
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use crate::support::activation_case::{allowed, reference, slope, within};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("activation::f32_against_f64", against_f64::<f32>),
    ("activation::f16_against_f64", against_f64::<f16>),
    ("activation::bf16_against_f64", against_f64::<bf16>),
    ("activation::f32_layouts", layouts::<f32>),
    ("activation::bf16_layouts", layouts::<bf16>),
    ("activation::bf16_every_value", every_value::<bf16>),
    ("activation::f16_every_value", every_value::<f16>),
    ("activation::rows_do_not_depend_on_each_other", batch_invariance),
    ("activation::chains_round_as_their_operators", chains),
    ("activation::bias_is_added_first", bias_first),
];

pub const ALL: [Activation; 10] = [
    Activation::Gelu,
    Activation::GeluCuda13_2,
    Activation::GeluTanh,
    Activation::GeluNew,
    Activation::GeluFast,
    Activation::GeluQuick,
    Activation::Silu,
    Activation::Fatrelu(0.25),
    Activation::Sigmoid,
    Activation::Relu2,
];

type Matrices<T> = [Matrix<T>; 2];

/// Runs the forward op and the backward op with newly allocated memory. The incoming gradient `dy` of the
/// backward op is `x`. Returns the forward result `y` and the gradient `dx`.
fn run<T: Element>(
    device: &Device,
    x: &[T],
    bias: Option<&[T]>,
    shape: [i64; 2],
    [layout_x, layout_y]: [Layout; 2],
    (f, roundings): (Activation, Roundings),
) -> [Vec<T>; 2] {
    let x = Matrix::upload(device, x, shape, layout_x);
    let [mut y, mut dx]: Matrices<T> = std::array::from_fn(|_| Matrix::poisoned(device, shape, layout_y));
    let bias = bias.map(|bias| device.upload(bias).expect("device memory"));
    let bias = || bias.as_ref().map(|bias| bias.view(&shape[1..]).expect("a vector"));
    let stream = Stream::default();
    activation(device, x.view(), bias(), y.view_mut(), f, roundings, stream).expect("valid arguments");
    activation_backward(device, x.view(), x.view(), bias(), dx.view_mut(), f, roundings, stream)
        .expect("valid arguments");
    [y.download(), dx.download()]
}

fn check<T: Element>(device: &Device, seed: u64, shape: [i64; 2], layouts: [Layout; 2], f: Activation) {
    let x: Vec<T> = values(&mut random(seed), (shape[0] * shape[1]) as usize);
    let (at, expected): (Vec<f64>, Vec<f64>) = wide(&x).into_iter().map(|x| (x, reference(f, x))).unzip();
    for roundings in [Roundings::Exact, Roundings::Once] {
        let [y, dx] = run(device, &x, None, shape, layouts, (f, roundings));
        within(&y, &expected, |i| allowed::<T>(f, roundings, expected[i], at[i]));
        let gradient: Vec<f64> = at.iter().map(|&x| x * slope(f, x)).collect();
        let near = |i: usize| matches!(f, Activation::Fatrelu(t) if (at[i] - f64::from(t)).abs() < 1e-4);
        within(&dx, &gradient, |i| {
            let loose = if near(i) { f64::INFINITY } else { 1e-7 };
            allowed::<T>(f, Roundings::Once, gradient[i], at[i]) + loose
        });
    }
}

fn against_f64<T: Element>(device: &Device) {
    let seed = seed();
    for (i, shape) in shapes().into_iter().enumerate() {
        let f = ALL[i % ALL.len()];
        case!("{f:?}, {} x {} ({})", shape.rows, shape.cols, shape.why);
        check::<T>(device, seed, [shape.rows, shape.cols], [Layout::dense(shape.cols); 2], f);
    }
}

/// Tests four layouts: contiguous rows, gaps of 64 elements between rows, gaps of one element, and a base
/// address that is not aligned. Each layout of the input is combined with each layout of the output.
fn layouts<T: Element>(device: &Device) {
    let seed = seed();
    for cols in [1, 64, 129, 640, 2048] {
        let kinds = [
            Layout::dense(cols),
            Layout { offset: 16, stride: cols + 64 },
            Layout { offset: 0, stride: cols + 1 },
            Layout { offset: 1, stride: cols },
        ];
        for x in kinds {
            for y in kinds {
                case!("{cols} columns, {x:?} to {y:?}");
                check::<T>(device, seed, [5, cols], [x, y], Activation::Gelu);
            }
        }
    }
}

/// Tests all 16-bit values, including infinities, NaN and subnormal numbers.
fn every_value<T: Element>(device: &Device) {
    let x: Vec<T> = (0..1 << 16).map(T::from_bits).collect();
    let dense = [Layout::dense(1 << 16); 2];
    for f in ALL {
        let other =
            matches!(f, Activation::GeluNew | Activation::GeluFast | Activation::Sigmoid | Activation::Relu2);
        for roundings in [Roundings::Exact, Roundings::Once] {
            let [y, _] = run(device, &x, None, [1, 1 << 16], dense, (f, roundings));
            let (mut finite, mut right, mut at) = (Vec::new(), Vec::new(), Vec::new());
            for (x, y) in x.iter().zip(&y) {
                let wide = f64::from(x.to_f32());
                let of_infinity =
                    matches!(f, Activation::Fatrelu(_) | Activation::Sigmoid | Activation::Relu2);
                // In f16, the square of 256 and of larger numbers is infinite.
                let small = wide.abs() < if f == Activation::Relu2 { 255.0 } else { 1e4 };
                assert_eq!(
                    y.to_f32().is_nan(),
                    wide.is_nan() || wide == f64::NEG_INFINITY && !of_infinity,
                    "{f:?} of {x:?} is {y:?}"
                );
                if small {
                    finite.push(*y);
                    right.push(reference(f, wide));
                    at.push(wide);
                } else if wide > 0.0 && !other {
                    assert_eq!(y.to_bits(), x.to_bits(), "{f:?}, {roundings:?} of a large number is itself");
                }
            }
            within(&finite, &right, |i| allowed::<T>(f, roundings, right[i], at[i]));
        }
    }
}

fn batch_invariance(device: &Device) {
    for f in [Activation::Gelu, Activation::Silu] {
        rows_stand_alone(&[5, 128, 1536, 3072], |x, shape| {
            let bias: Vec<bf16> = values(&mut random(1), shape[1] as usize);
            run(device, x, Some(&bias), shape, [Layout::dense(shape[1]); 2], (f, Roundings::Exact))
        });
    }
}

/// Tests that `GeluQuick` in exact mode rounds like a chain of torch operators. Each operator of the chain
/// rounds its result to the element type.
fn chains(device: &Device) {
    let x: Vec<bf16> = values(&mut random(seed()), 4096);
    let once = |x: f32| bf16::from_f32(x).to_f32();
    let chain = |x: &bf16| {
        let x = x.to_f32();
        let sigmoid = once((1.0 / (1.0 + (-f64::from(once(1.702 * x))).exp())) as f32);
        bf16::from_f32(x * sigmoid)
    };
    let expected: Vec<bf16> = x.iter().map(chain).collect();
    let how = (Activation::GeluQuick, Roundings::Exact);
    let [y, _] = run(device, &x, None, [1, 4096], [Layout::dense(4096); 2], how);
    let differ = y.iter().zip(&expected).filter(|(y, expected)| y != expected).count();
    assert!(differ <= 4, "{differ} of 4096 differ: exp is not the same to the last bit, the roundings are");
}

/// Tests the bias. In exact mode, the sum `x + bias` is rounded before the activation function is applied to
/// it. In the mode `Once`, only the final result is rounded.
fn bias_first(device: &Device) {
    let seed = seed();
    for (cols, offset) in [(64_i64, 0), (129, 0), (640, 0), (640, 1)] {
        let x: Vec<bf16> = values(&mut random(seed), 7 * cols as usize);
        let bias: Vec<bf16> = values(&mut random(seed + 1), cols as usize);
        let (shape, layout) = ([7, cols], [Layout { offset, ..Layout::dense(cols) }; 2]);
        let sum = |i: usize| x[i].to_f32() + bias[i % cols as usize].to_f32();
        let rounded: Vec<bf16> = (0..x.len()).map(|i| bf16::from_f32(sum(i))).collect();
        let [y, _] = run(device, &x, Some(&bias), shape, layout, (Activation::Gelu, Roundings::Exact));
        let [expected, _] = run(device, &rounded, None, shape, layout, (Activation::Gelu, Roundings::Exact));
        same_bits(&y, &expected);

        let [y, dx] = run(device, &x, Some(&bias), shape, layout, (Activation::Silu, Roundings::Once));
        let expected: Vec<f64> = (0..x.len()).map(|i| reference(Activation::Silu, sum(i).into())).collect();
        within(&y, &expected, |i| allowed::<bf16>(Activation::Silu, Roundings::Once, expected[i], 8.0));
        let gradient: Vec<f64> =
            (0..x.len()).map(|i| f64::from(x[i].to_f32()) * slope(Activation::Silu, sum(i).into())).collect();
        within(&dx, &gradient, |i| allowed::<bf16>(Activation::Silu, Roundings::Once, gradient[i], 8.0));
    }
}
