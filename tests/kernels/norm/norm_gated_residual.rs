//! Compares `norm_gated_residual` with f64 results, and with the bits of two ops in sequence: a norm and a
//! gated residual.
use half::{bf16, f16};
use oxiwarp::{
    AdaNorm, Affine, Device, Element, GatedResidual, LaunchOverride, Overridable as _, ScaleShift, Stream,
    gated_residual, norm_gated_residual,
};
use oxiwarp_tests::approx::{Approx, close, normed};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::operand::{Form, Kind, Operand};
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};
use rand::rngs::StdRng;

use crate::support::ada_norm_case::{self, PARAMS, rounds_in_norm};
use crate::support::modulations::in_batches;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("norm_gated_residual::f32_against_f64", against_f64::<f32>),
    ("norm_gated_residual::f16_against_f64", against_f64::<f16>),
    ("norm_gated_residual::bf16_against_f64", against_f64::<bf16>),
    ("norm_gated_residual::branch_of_another_dtype", other_branch),
    ("norm_gated_residual::f32_is_the_two", is_the_two::<f32, f32>),
    ("norm_gated_residual::f16_is_the_two", is_the_two::<f16, f16>),
    ("norm_gated_residual::bf16_is_the_two", is_the_two::<bf16, bf16>),
    ("norm_gated_residual::f32_with_bf16_is_the_two", is_the_two::<f32, bf16>),
    ("norm_gated_residual::f16_with_f32_is_the_two", is_the_two::<f16, f32>),
    ("norm_gated_residual::layouts", layouts),
    ("norm_gated_residual::kernels", kernels),
];

/// The operands of a call other than `x` and `y`. The element type `Y` is that of `y`.
struct Operands<Y> {
    gate: Option<Operand<Y>>,
    weight: Option<Operand<Y>>,
    bias: Option<Operand<Y>>,
}

/// The shape of the gate, and for gate, weight and bias: `Some(true)` means f32, `Some(false)` means the
/// dtype of `y`, and `None` means absent.
#[derive(Clone, Copy, Debug)]
struct BranchCase {
    form: Form,
    gate: Option<bool>,
    weight: Option<bool>,
    bias: Option<bool>,
}

const USUAL: BranchCase =
    BranchCase { form: Form::BatchSlice, gate: Some(false), weight: Some(false), bias: None };

/// All tested combinations of operands.
fn cases() -> Vec<BranchCase> {
    const ALL: [Option<bool>; 3] = [None, Some(false), Some(true)];
    let mut made = vec![];
    for gate in ALL {
        for weight in ALL {
            for bias in ALL {
                made.push(BranchCase { form: Form::ALL[made.len() % 5], gate, weight, bias });
            }
        }
    }
    made
}

impl<Y: Element> Operands<Y> {
    fn new(device: &Device, random: &mut StdRng, shape: [i64; 3], offset: usize, case: BranchCase) -> Self {
        let gate = case
            .gate
            .map(|single| Operand::new(device, random, shape, Kind { form: case.form, single, offset }));
        let [weight, bias] = [case.weight, case.bias]
            .map(|single| single.map(|single| Operand::vector(device, random, shape[2], single, offset)));
        Self { gate, weight, bias }
    }

    fn affine(&self) -> Affine<'_> {
        Affine {
            weight: self.weight.as_ref().map(Operand::view),
            bias: self.bias.as_ref().map(Operand::view),
        }
    }

    /// Returns whether the norm is rounded, and whether the product with the gate is rounded.
    fn roundings(&self, params: AdaNorm) -> [bool; 2] {
        let single = |operand: &Option<Operand<Y>>| operand.as_ref().is_some_and(Operand::is_f32);
        let norm = params.exact && !single(&self.weight) && !single(&self.bias);
        [norm, norm && !single(&self.gate)]
    }
}

/// Runs the op with newly allocated memory and returns its result.
fn run<T: Element, Y: Element>(
    device: &Device,
    (x, y): (&[T], &[Y]),
    operands: &Operands<Y>,
    [batch, tokens, cols]: [i64; 3],
    [read, write]: [Layout; 2],
    params: AdaNorm,
) -> Vec<T> {
    let rows = [batch * tokens, cols];
    let (x, y) = (Matrix::upload(device, x, rows, read), Matrix::upload(device, y, rows, read));
    let mut out = Matrix::<T>::poisoned(device, rows, write);
    let (inputs, to) = ([x.view_batches(batch), y.view_batches(batch)], out.view_batches_mut(batch));
    let gate = operands.gate.as_ref().map(Operand::view);
    norm_gated_residual(device, inputs, gate, operands.affine(), to, params, Stream::default())
        .expect("valid");
    out.download()
}

/// Computes the formula in f64, with error bounds.
fn reference<T: Element, Y: Element>(
    (x, y): (&[T], &[Y]),
    operands: &Operands<Y>,
    cols: usize,
    params: AdaNorm,
) -> Vec<Approx> {
    let [round_norm, round_product] = operands.roundings(params);
    let in_norm = round_norm && rounds_in_norm(params);
    let round = |value: Approx, wanted: bool| if wanted { value.rounded(Y::DTYPE) } else { value };
    let one = |(at, n): (usize, Approx)| {
        let mut branch = round(n, in_norm);
        if let Some(weight) = &operands.weight {
            branch = round(branch.times(Approx::exact(weight.at(at % cols).into())), in_norm);
        }
        if let Some(bias) = &operands.bias {
            branch = round(branch.plus(Approx::exact(bias.at(at % cols).into())), in_norm);
        }
        branch = round(branch, round_norm);
        if let Some(gate) = &operands.gate {
            branch = round(branch.times(Approx::exact(gate.at(at).into())), round_product);
        }
        Approx::exact(x[at].to_f32().into()).plus(branch).rounded(T::DTYPE)
    };
    normed(&wide(y), cols, params.norm, params.eps).into_iter().enumerate().map(one).collect()
}

/// Checks one shape and layout, and returns the result.
fn check<T: Element, Y: Element>(
    device: &Device,
    seed: u64,
    shape: [i64; 3],
    layouts: [Layout; 2],
    case: BranchCase,
    params: AdaNorm,
) -> Vec<T> {
    let (random, count) = (&mut random(seed), shape.iter().product::<i64>() as usize);
    let (x, y): (Vec<T>, Vec<Y>) = (values(random, count), values(random, count));
    let operands = Operands::new(device, random, shape, layouts[0].offset, case);
    let out = run(device, (&x, &y), &operands, shape, layouts, params);
    close(&out, &reference((&x, &y), &operands, shape[2] as usize, params), shape[2] as usize);
    out
}

fn against_f64<T: Element>(device: &Device) {
    let (seed, cases) = (seed(), cases());
    for (i, shape) in shapes().into_iter().enumerate() {
        for (case, params) in cases.iter().zip(PARAMS.iter().cycle().skip(i)).skip(i % 4).step_by(4) {
            case!("{} x {} ({}), {case:?}, {params:?}", shape.rows, shape.cols, shape.why);
            let dense = [Layout::dense(shape.cols); 2];
            check::<T, T>(device, seed, in_batches(shape.rows, shape.cols), dense, *case, *params);
        }
    }
}

/// Tests a branch `y` of another dtype than `x`.
fn other_branch(device: &Device) {
    let seed = seed();
    for (i, case) in cases().into_iter().enumerate() {
        let (cols, params) = ([7, 260, 640, 1536][i % 4], PARAMS[i / 2 % 6]);
        case!("{cols} columns, {case:?}, {params:?}");
        let (shape, dense) = ([2, 3, cols], [Layout::dense(cols); 2]);
        check::<f32, bf16>(device, seed, shape, dense, case, params);
        check::<f32, f16>(device, seed, shape, dense, case, params);
        check::<bf16, f32>(device, seed, shape, dense, case, params);
        check::<f16, bf16>(device, seed, shape, dense, case, params);
    }
}

/// Tests that the result has the bits of a norm, and a gated residual whose branch is the result of the norm.
/// The norm is `ada_norm` with a scale of 0.
fn is_the_two<T: Element, Y: Element>(device: &Device) {
    let seed = seed();
    for (i, case) in cases().into_iter().enumerate() {
        let (cols, params) = ([1, 7, 260, 640, 1536, 25_000][i % 6], PARAMS[i % 3]);
        let (shape, dense, random) = ([2, 3, cols], Layout::dense(cols), &mut random(seed + i as u64));
        let (x, y): (Vec<T>, Vec<Y>) = (values(random, 6 * cols as usize), values(random, 6 * cols as usize));
        let operands = Operands::new(device, random, shape, 0, case);
        if !operands.roundings(params)[0] {
            continue;
        }
        case!("{cols} columns, {case:?}, {params:?}");
        let zeros = device.upload(&vec![Y::from_f32(0.0); cols as usize]).expect("memory");
        let by = ScaleShift { scale: zeros.view(&[cols]).expect("inside").into(), shift: None };
        let n = ada_norm_case::run(device, &y, (operands.affine(), by), shape, [dense; 2], params);
        let expected = match &operands.gate {
            None => x.iter().zip(&n).map(|(x, n)| T::from_f32(x.to_f32() + n.to_f32())).collect(),
            Some(gate) => {
                let (x, n) = (
                    Matrix::upload(device, &x, [6, cols], dense),
                    Matrix::upload(device, &n, [6, cols], dense),
                );
                let mut sum = Matrix::<T>::poisoned(device, [6, cols], dense);
                let (x, n, out) = (x.view_batches(2), n.view_batches(2), sum.view_batches_mut(2));
                let (how, stream) = (GatedResidual::default(), Stream::default());
                gated_residual(device, x, n, gate.view().into(), None, out, how, stream).expect("valid");
                sum.download()
            }
        };
        same_bits(&run(device, (&x, &y), &operands, shape, [dense; 2], params), &expected);
    }
}

/// Tests that rows with gaps and unaligned base addresses give the same bits as contiguous rows.
fn layouts(device: &Device) {
    let seed = seed();
    for cols in [1, 64, 129, 640, 25_000] {
        let dense = Layout::dense(cols);
        let (gaps, odd) = (Layout { offset: 16, stride: cols + 64 }, Layout { offset: 1, stride: cols + 3 });
        for (i, params) in PARAMS.into_iter().enumerate() {
            let case = BranchCase { form: Form::ALL[i % 5], ..USUAL };
            let check = |layouts| check::<bf16, bf16>(device, seed, [2, 3, cols], layouts, case, params);
            let packed = check([dense; 2]);
            for layouts in [[gaps; 2], [odd; 2], [odd, dense], [dense, odd]] {
                case!("{cols} columns, {layouts:?}, {params:?}");
                same_bits(&check(layouts), &packed);
            }
        }
    }
}

/// Tests which kernel the op launches.
fn kernels(device: &Device) {
    let (dense, odd) = (Layout::dense(1536), Layout { offset: 1, stride: 1539 });
    let single = BranchCase { gate: Some(true), ..USUAL };
    for (layout, case, exact, kernel) in [
        (dense, USUAL, true, "norm_gated_residual_layer_smem1 "),
        (dense, single, true, "norm_gated_residual_layer_any "),
        (dense, BranchCase { weight: None, ..single }, false, "norm_gated_residual_layer_smem1 "),
        (odd, USUAL, true, "norm_gated_residual_layer_any "),
    ] {
        let device = device.with_override(LaunchOverride::default());
        let params = AdaNorm { exact, ..PARAMS[0] };
        check::<bf16, bf16>(&device, seed(), [2, 3, 1536], [layout; 2], case, params);
        let launches = device.take_launches().concat();
        assert!(launches.starts_with(kernel), "{launches}, expected {kernel}");
    }
}
