//! Compares `gated_activation` and its gradients with f64 results. The value and the gate are the two halves
//! of each row of one packed tensor, or they are two separate tensors.
use half::{bf16, f16};
use oxiwarp::{
    Activation, Device, Element, Gate, GatedActivation, Roundings, Stream, gated_activation,
    gated_activation_backward,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values};

use super::activation::ALL;
use crate::support::activation_case::{allowed, reference, rounding, slope, within};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("gated_activation::f32_against_f64", against_f64::<f32>),
    ("gated_activation::f16_against_f64", against_f64::<f16>),
    ("gated_activation::bf16_against_f64", against_f64::<bf16>),
    ("gated_activation::f32_layouts", layouts::<f32>),
    ("gated_activation::bf16_layouts", layouts::<bf16>),
    ("gated_activation::packed_or_not_the_same_bits", packed_or_not),
    ("gated_activation::exact_rounds_between", rounds_between),
    ("gated_activation::biases_are_added_first", biases_first),
    ("gated_activation::two_levels_of_rows", two_levels),
];

/// The two halves of the input, each of shape `[rows, cols]`.
struct Input<T> {
    first: Vec<T>,
    second: Vec<T>,
    bias: Option<Vec<T>>,
    shape: [i64; 2],
}

impl<T: Element> Input<T> {
    fn random(seed: u64, shape: [i64; 2]) -> Self {
        let (random, len) = (&mut random(seed), (shape[0] * shape[1]) as usize);
        Self { first: values(random, len), second: values(random, len), bias: None, shape }
    }
    /// Returns one tensor that contains both halves of each row.
    fn packed(&self) -> Vec<T> {
        let cols = self.shape[1] as usize;
        let rows = self.first.chunks(cols).zip(self.second.chunks(cols));
        rows.flat_map(|(first, second)| [first, second].concat()).collect()
    }
    /// Returns element `i` of the value and element `i` of the gate in f32. If there is a bias, it is added
    /// to both.
    fn at(&self, i: usize, gate: Gate) -> [f32; 2] {
        let cols = self.shape[1] as usize;
        let bias = |half: usize| self.bias.as_ref().map_or(0.0, |bias| bias[half * cols + i % cols].to_f32());
        let (first, second) = (self.first[i].to_f32() + bias(0), self.second[i].to_f32() + bias(1));
        if gate == Gate::First { [second, first] } else { [first, second] }
    }
}

/// Runs the forward op and the backward op with newly allocated memory. The incoming gradient `dy` of the
/// backward op is the first input half. Returns the forward result `y`, and the gradients of both input
/// halves in one tensor.
fn run<T: Element>(
    device: &Device,
    input: &Input<T>,
    packed: bool,
    [layout_x, layout_y]: [Layout; 2],
    params: GatedActivation,
) -> [Vec<T>; 2] {
    let [rows, cols] = input.shape;
    let wide = |layout: Layout| Layout { stride: layout.stride + cols, ..layout };
    let dy = Matrix::upload(device, &input.first, input.shape, layout_y);
    let mut y = Matrix::<T>::poisoned(device, input.shape, layout_y);
    let mut dx = Matrix::<T>::poisoned(device, [rows, 2 * cols], wide(layout_y));
    let bias = input.bias.as_ref().map(|bias| device.upload(bias).expect("device memory"));
    let bias = || bias.as_ref().map(|bias| bias.view(&[2 * cols]).expect("a vector"));
    let (first, second) = if packed {
        (Matrix::upload(device, &input.packed(), [rows, 2 * cols], wide(layout_x)), None)
    } else {
        let second = Matrix::upload(device, &input.second, input.shape, layout_x);
        (Matrix::upload(device, &input.first, input.shape, layout_x), Some(second))
    };
    let second = || second.as_ref().map(Matrix::view);
    let stream = Stream::default();
    gated_activation(device, first.view(), second(), bias(), y.view_mut(), params, stream).expect("valid");
    gated_activation_backward(
        device,
        dy.view(),
        first.view(),
        second(),
        bias(),
        dx.view_mut(),
        params,
        stream,
    )
    .expect("valid");
    [y.download(), dx.download()]
}

fn check<T: Element>(
    device: &Device,
    input: &Input<T>,
    packed: bool,
    layouts: [Layout; 2],
    params: GatedActivation,
) {
    let (f, cols) = (params.activation, input.shape[1] as usize);
    let [y, dx] = run(device, input, packed, layouts, params);
    let wide = |i: usize| input.at(i, params.gate).map(f64::from);
    let expected: Vec<f64> = (0..y.len()).map(|i| wide(i)[0] * reference(f, wide(i)[1])).collect();
    // In exact mode, the op rounds the activation, and then the product. The value multiplies the error of
    // the activation. With a bias, exact mode also rounds the sums with the bias. The bound ignores these
    // roundings, because no test calls this function with a bias in exact mode.
    within(&y, &expected, |i| {
        let [x, gate] = wide(i).map(f64::abs);
        match params.roundings {
            Roundings::Exact => {
                let activation = x * allowed::<T>(f, params.roundings, reference(f, wide(i)[1]), gate);
                activation + rounding::<T>(expected[i].abs() + activation)
            }
            Roundings::Once => allowed::<T>(f, params.roundings, expected[i], x.max(1.0) * gate),
        }
    });

    let gradient = |i: usize| {
        let (row, col) = (i / (2 * cols), i % (2 * cols));
        let at = row * cols + col % cols;
        let ([x, gate], dy) = (wide(at), f64::from(input.first[at].to_f32()));
        let of_gate = (col < cols) == (params.gate == Gate::First);
        let near = of_gate && matches!(f, Activation::Fatrelu(t) if (gate - f64::from(t)).abs() < 1e-4);
        let value = if of_gate { dy * x * slope(f, gate) } else { dy * reference(f, gate) };
        (value, if near { f64::INFINITY } else { dy.abs().max(1.0) * x.abs().max(1.0) * gate.abs().max(1.0) })
    };
    let expected: Vec<f64> = (0..dx.len()).map(|i| gradient(i).0).collect();
    within(&dx, &expected, |i| {
        allowed::<T>(f, Roundings::Once, expected[i], gradient(i).1) + gradient(i).1 * 1e-7
    });
}

/// Returns whether the input is packed, and the parameters of the op. Different `i` give different
/// combinations of packing, activation function, gate half and rounding mode.
fn mixture(i: usize) -> (bool, GatedActivation) {
    let gate = if i / 2 % 2 == 0 { Gate::Second } else { Gate::First };
    let roundings = if i / 4 % 2 == 0 { Roundings::Exact } else { Roundings::Once };
    (i % 2 == 0, GatedActivation { activation: ALL[(i + i / ALL.len()) % ALL.len()], gate, roundings })
}

fn against_f64<T: Element>(device: &Device) {
    let seed = seed();
    for (i, shape) in shapes().into_iter().enumerate() {
        let (packed, params) = mixture(i);
        case!("{params:?}, {} x {} ({})", shape.rows, shape.cols, shape.why);
        let input = Input::<T>::random(seed, [shape.rows, shape.cols]);
        check(device, &input, packed, [Layout::dense(shape.cols); 2], params);
    }
}

/// Tests four layouts: contiguous rows, gaps of 64 elements between rows, gaps of one element, and a base
/// address that is not aligned. Each layout of the input is combined with each layout of the output.
fn layouts<T: Element>(device: &Device) {
    let seed = seed();
    for (i, cols) in [1, 64, 129, 640, 2560].into_iter().enumerate() {
        let kinds = [
            Layout::dense(cols),
            Layout { offset: 16, stride: cols + 64 },
            Layout { offset: 0, stride: cols + 1 },
            Layout { offset: 1, stride: cols },
        ];
        for (j, x) in kinds.into_iter().enumerate() {
            for (k, y) in kinds.into_iter().enumerate() {
                let (packed, params) = mixture(i + j + k);
                case!("{cols} columns, {x:?} to {y:?}, {params:?}");
                check(device, &Input::<T>::random(seed, [5, cols]), packed, [x, y], params);
            }
        }
    }
}

/// Tests that a packed input and two separate tensors give the same bits. Also tests that the result of a row
/// does not depend on other rows.
fn packed_or_not(device: &Device) {
    let seed = seed();
    for cols in [5_i64, 64, 2560, 3000] {
        let (input, dense) = (Input::<bf16>::random(seed, [300, cols]), [Layout::dense(cols); 2]);
        for i in 0..ALL.len() {
            let (_, params) = mixture(i);
            let [packed, two] = [true, false].map(|packed| run(device, &input, packed, dense, params));
            same_bits(&packed[0], &two[0]);
            same_bits(&packed[1], &two[1]);
            let last = 299 * cols as usize..300 * cols as usize;
            let (first, second) = (input.first[last.clone()].to_vec(), input.second[last.clone()].to_vec());
            let alone = Input { first, second, bias: None, shape: [1, cols] };
            same_bits(&run(device, &alone, true, dense, params)[0], &packed[0][last]);
        }
    }
}

/// Tests exact mode: the result must have the bits of the product of the value and the activation of the
/// gate. The activation is rounded before the multiplication.
fn rounds_between(device: &Device) {
    let input = Input::<bf16>::random(seed(), [3, 640]);
    let dense = [Layout::dense(640); 2];
    for activation in ALL {
        let params = GatedActivation { activation, gate: Gate::Second, roundings: Roundings::Exact };
        let [y, _] = run(device, &input, true, dense, params);
        let gate = device.upload(&input.second).expect("device memory");
        let mut f = device.alloc::<bf16>(input.second.len()).expect("device memory");
        let view = (gate.view(&[3, 640]).unwrap(), f.view_mut(&[3, 640]).unwrap());
        oxiwarp::activation(device, view.0, None, view.1, activation, Roundings::Exact, Stream::default())
            .expect("valid");
        let f = f.download().expect("a kernel that ran");
        let product = |i: usize| bf16::from_f32(input.first[i].to_f32() * f[i].to_f32());
        same_bits(&y, &(0..y.len()).map(product).collect::<Vec<_>>());
    }
}

fn biases_first(device: &Device) {
    let seed = seed();
    for (cols, offset) in [(64_i64, 0), (129, 0), (640, 0), (640, 1)] {
        for i in 0..16 {
            let (packed, params) = mixture(i);
            let mut input = Input::<bf16>::random(seed, [7, cols]);
            input.bias = Some(values(&mut random(seed + 1), 2 * cols as usize));
            let layout = [Layout { offset, ..Layout::dense(cols) }; 2];
            if params.roundings == Roundings::Once {
                check(device, &input, packed, layout, params);
                continue;
            }
            let [y, dx] = run(device, &input, packed, layout, params);
            // A second call without a bias, on the rounded sums `input + bias`, must give the same `y`. The
            // gradients are not compared, because the two calls have different incoming gradients `dy`. The
            // function `run` passes the first half of the input as `dy`. In the second call, the bias has
            // been added to this half.
            let rounded = |i: usize| input.at(i, Gate::Second).map(bf16::from_f32);
            let (first, second) = (0..y.len()).map(|i| rounded(i).into()).unzip();
            let sums = Input { first, second, bias: None, shape: input.shape };
            let [expected, _] = run(device, &sums, packed, layout, params);
            same_bits(&y, &expected);
            assert!(dx.iter().all(|dx| dx.is_finite()));
        }
    }
}

/// Tests a view `[3, 4, 2 * 64]` inside a tensor `[3, 6, 2 * 64]`. After every four rows, the view skips two
/// rows. The rows of the view are therefore not evenly spaced, and the op needs two strides to address them.
fn two_levels(device: &Device) {
    let input = Input::<f32>::random(seed(), [18, 64]);
    let (from, mut to) = (device.upload(&input.packed()).unwrap(), device.alloc::<f32>(3 * 4 * 64).unwrap());
    let x = from.view_strided(128, &[3, 4, 128], &[6 * 128, 128, 1]).unwrap();
    let params =
        GatedActivation { activation: Activation::Silu, gate: Gate::First, roundings: Roundings::Exact };
    gated_activation(device, x, None, None, to.view_mut(&[3, 4, 64]).unwrap(), params, Stream::default())
        .unwrap();
    let whole = run(device, &input, true, [Layout::dense(64); 2], params);
    let inside: Vec<f32> =
        (0..3).flat_map(|i| whole[0][(i * 6 + 1) * 64..(i * 6 + 5) * 64].to_vec()).collect();
    same_bits(&to.download().unwrap(), &inside);
}
