//! Compares the gated residual of the model Mochi with f64 results. A second op also applies an RMSNorm with
//! a scale to the gated residual. The second op must give the same bits as two ops in sequence.
use half::{bf16, f16};
use oxiwarp::{
    AdaNorm, Affine, Device, Element, LaunchOverride, Norm, Overridable as _, ScaleShift, Stream,
    residual_tanh_gated_rms_norm, residual_tanh_gated_rms_norm_modulated,
};
use oxiwarp_tests::approx::{Approx, close, normed};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, ulp};
use oxiwarp_tests::operand::{Form, Kind, Operand};
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use crate::support::ada_norm_case as ada_norm;
use crate::support::modulations::{ModulationCase, forms, in_batches};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("residual_tanh_gated_rms_norm::f32_against_f64", against_f64::<f32>),
    ("residual_tanh_gated_rms_norm::f16_against_f64", against_f64::<f16>),
    ("residual_tanh_gated_rms_norm::bf16_against_f64", against_f64::<bf16>),
    ("residual_tanh_gated_rms_norm::f32_layouts", layouts::<f32>),
    ("residual_tanh_gated_rms_norm::f16_layouts", layouts::<f16>),
    ("residual_tanh_gated_rms_norm::bf16_layouts", layouts::<bf16>),
    ("residual_tanh_gated_rms_norm::held", in_registers),
    ("residual_tanh_gated_rms_norm::rows_do_not_depend_on_each_other", batch_invariance),
    ("residual_tanh_gated_rms_norm::nan_and_infinity_stay_in_their_row", not_finite),
    ("residual_tanh_gated_rms_norm::branch_of_another_dtype", other_branch),
    ("residual_tanh_gated_rms_norm_modulated::f32_is_the_two", chained::<f32>),
    ("residual_tanh_gated_rms_norm_modulated::f16_is_the_two", chained::<f16>),
    ("residual_tanh_gated_rms_norm_modulated::bf16_is_the_two", chained::<bf16>),
];

const EPS: f32 = 1e-6;

/// Runs the op with newly allocated memory and returns its result.
fn run<T: Element>(
    device: &Device,
    [x, branch]: [&[T]; 2],
    gate: &Operand<T>,
    [batch, tokens, cols]: [i64; 3],
    [read, write]: [Layout; 2],
) -> Vec<T> {
    let rows = [batch * tokens, cols];
    let [x, branch] = [x, branch].map(|values| Matrix::upload(device, values, rows, read));
    let mut out = Matrix::<T>::poisoned(device, rows, write);
    let (inputs, to) = ([x.view_batches(batch), branch.view_batches(batch)], out.view_batches_mut(batch));
    residual_tanh_gated_rms_norm(device, inputs, gate.view(), to, EPS, Stream::default()).expect("valid");
    out.download()
}

/// Computes `x + rms(branch) * tanh(gate)`. `tanh(gate)` is rounded to the dtype of the gate. The product and
/// the sum are rounded to the dtype of the rows `T`.
fn reference<T: Element>([x, branch]: [&[T]; 2], gate: &Operand<T>, cols: usize) -> Vec<Approx> {
    let one = |(at, n): (usize, Approx)| {
        let value = f64::from(gate.at(at)).tanh();
        // In f32, the error of tanh is at most 2 ulp.
        let tanh = Approx { value, error: 2.0 * ulp(oxiwarp::Dtype::F32, value) };
        let tanh = if gate.is_f32() { tanh } else { tanh.rounded(T::DTYPE) };
        let product = n.times(tanh).rounded(T::DTYPE);
        Approx::exact(x[at].to_f32().into()).plus(product).rounded(T::DTYPE)
    };
    normed(&wide(branch), cols, Norm::Rms, EPS).into_iter().enumerate().map(one).collect()
}

/// Checks one shape and layout, and returns the result.
fn check<T: Element>(
    device: &Device,
    seed: u64,
    shape: [i64; 3],
    layouts: [Layout; 2],
    (form, single): (Form, bool),
) -> Vec<T> {
    let (random, cols) = (&mut random(seed), shape[2] as usize);
    let [x, branch]: [Vec<T>; 2] = [(); 2].map(|()| values(random, shape.iter().product::<i64>() as usize));
    let gate = Operand::new(device, random, shape, Kind { form, single, offset: layouts[0].offset });
    let out = run(device, [&x, &branch], &gate, shape, layouts);
    close(&out, &reference([&x, &branch], &gate, cols), cols);
    out
}

fn against_f64<T: Element>(device: &Device) {
    let seed = seed();
    for (i, shape) in shapes().into_iter().enumerate() {
        for (form, single) in
            Form::ALL.into_iter().flat_map(|form| [(form, false), (form, true)]).skip(i % 4).step_by(3)
        {
            case!("{} x {} ({}), {form:?}", shape.rows, shape.cols, shape.why);
            let dense = [Layout::dense(shape.cols); 2];
            check::<T>(device, seed, in_batches(shape.rows, shape.cols), dense, (form, single));
        }
    }
}

/// Tests that rows with gaps and unaligned base addresses give the same bits as contiguous rows.
fn layouts<T: Element>(device: &Device) {
    let seed = seed();
    for cols in [1, 64, 129, 640, 3072, 25_000] {
        let dense = Layout::dense(cols);
        let (gaps, odd) = (Layout { offset: 16, stride: cols + 64 }, Layout { offset: 1, stride: cols + 3 });
        for form in Form::ALL {
            let check = |layouts| check::<T>(device, seed, [2, 3, cols], layouts, (form, false));
            let packed = check([dense; 2]);
            for layouts in [[gaps; 2], [odd; 2], [odd, dense], [dense, odd]] {
                case!("{cols} columns, {layouts:?}, {form:?}");
                same_bits(&check(layouts), &packed);
            }
        }
    }
}

/// Tests which kernel the op launches. For aligned rows of 3072 columns, as in Mochi, it must be a
/// specialised kernel if the gate has the dtype of the rows.
fn in_registers(device: &Device) {
    let (dense, odd) = (Layout::dense(3072), Layout { offset: 1, stride: 3075 });
    for (layout, single, is_in_registers) in [(dense, false, true), (dense, true, false), (odd, false, false)]
    {
        let device = device.with_override(LaunchOverride::default());
        check::<bf16>(&device, seed(), [2, 3, 3072], [layout; 2], (Form::ALL[0], single));
        let launches = device.take_launches().concat();
        assert_eq!(
            launches.starts_with("residual_tanh_gated_rms_norm_block6 "),
            is_in_registers,
            "{launches}"
        );
    }
}

/// Tests a float32 residual with a branch of 16 bits, and 16-bit residuals with other branches. The product
/// of norm and `tanh(gate)` is rounded to the dtype of the branch. This product is the result of the op for a
/// residual of zeros in this dtype.
fn other_branch(device: &Device) {
    fn check<T: Element, Y: Element>(device: &Device, seed: u64, cols: i64, kind: Kind) {
        let (shape, dense, random) = ([2, 3, cols], [Layout::dense(cols); 2], &mut random(seed));
        let (x, branch): (Vec<T>, Vec<Y>) =
            (values(random, 6 * cols as usize), values(random, 6 * cols as usize));
        let gate = Operand::<Y>::new(device, random, shape, kind);
        let product = run(device, [&vec![Y::from_f32(0.0); x.len()], &branch], &gate, shape, dense);
        let expected: Vec<T> =
            x.iter().zip(&product).map(|(x, product)| T::from_f32(x.to_f32() + product.to_f32())).collect();
        let (x, branch) = (
            Matrix::upload(device, &x, [6, cols], dense[0]),
            Matrix::upload(device, &branch, [6, cols], dense[0]),
        );
        let [mut out, mut sum, mut normed] =
            [(); 3].map(|()| Matrix::<T>::poisoned(device, [6, cols], dense[0]));
        let inputs = || [x.view_batches(2), branch.view_batches(2)];
        let to = out.view_batches_mut(2);
        residual_tanh_gated_rms_norm(device, inputs(), gate.view(), to, EPS, Stream::default())
            .expect("valid");
        same_bits(&out.download(), &expected);
        let scale = Operand::<Y>::vector(device, random, cols, false, 0);
        let outs = [normed.view_batches_mut(2), sum.view_batches_mut(2)];
        let (by, stream) = (scale.view().into(), Stream::default());
        residual_tanh_gated_rms_norm_modulated(device, inputs(), gate.view(), by, outs, EPS, stream)
            .expect("valid");
        same_bits(&sum.download(), &expected);
        let by = (Affine::default(), ScaleShift { scale: scale.view().into(), shift: None });
        let params = AdaNorm { norm: Norm::Rms, eps: EPS, exact: false, ..AdaNorm::default() };
        same_bits(&normed.download(), &ada_norm::run(device, &expected, by, shape, dense, params));
    }
    let seed = seed();
    for (i, cols) in [1, 7, 260, 3072, 25_000].into_iter().enumerate() {
        for (form, single) in [(Form::ALL[i], false), (Form::ALL[4 - i], true)] {
            case!("{cols} columns, {form:?}, {single}");
            let kind = Kind { form, single, offset: 0 };
            check::<f32, bf16>(device, seed, cols, kind);
            check::<f32, f16>(device, seed, cols, kind);
            check::<bf16, f32>(device, seed, cols, kind);
            check::<bf16, f16>(device, seed, cols, kind);
        }
    }
}

fn batch_invariance(device: &Device) {
    let (seed, rows) = (seed(), 300_usize);
    for cols in [5_usize, 1536, 3072] {
        let (random, width) = (&mut random(seed), cols as i64);
        let [x, branch]: [Vec<bf16>; 2] = [(); 2].map(|()| values(random, rows * cols));
        let gate = Operand::vector(device, random, width, false, 0);
        let some = |rows: std::ops::Range<usize>| {
            let (shape, part) = ([1, rows.len() as i64, width], rows.start * cols..rows.end * cols);
            run(device, [&x[part.clone()], &branch[part]], &gate, shape, [Layout::dense(width); 2])
        };
        let all = some(0..rows);
        for row in [0, 11, rows - 7] {
            let expected = &all[row * cols..(row + 7) * cols];
            same_bits(&some(row..row + 7), expected);
            same_bits(&some(row..row + 1), &expected[..cols]);
        }
    }
}

fn not_finite(device: &Device) {
    let (cols, random) = (40_usize, &mut random(seed()));
    let (shape, dense) = ([1, 5, cols as i64], [Layout::dense(cols as i64); 2]);
    let [mut x, mut branch]: [Vec<f32>; 2] = [(); 2].map(|()| values(random, 5 * cols));
    let gate = Operand::vector(device, random, shape[2], false, 0);
    let right = run(device, [&x, &branch], &gate, shape, dense);
    (branch[cols + 3], branch[2 * cols + 7], x[3 * cols + 9]) = (f32::NAN, f32::INFINITY, f32::INFINITY);
    let out = run(device, [&x, &branch], &gate, shape, dense);
    assert!(out[cols..2 * cols].iter().all(|out| out.is_nan()), "a NaN reaches its whole row");
    for at in 2 * cols..3 * cols {
        assert!(
            if at % cols == 7 { out[at].is_nan() } else { out[at] == x[at] },
            "element {at}: {}",
            out[at]
        );
    }
    assert_eq!(out[3 * cols + 9], f32::INFINITY, "an infinity of x stays in its column");
    for row in [0, 4] {
        same_bits(&out[row * cols..(row + 1) * cols], &right[row * cols..(row + 1) * cols]);
    }
    same_bits(&out[3 * cols..3 * cols + 9], &right[3 * cols..3 * cols + 9]);
}

/// Checks that `residual_tanh_gated_rms_norm_modulated` gives the same bits as `residual_tanh_gated_rms_norm`
/// followed by `ada_norm` in fast mode (one rounding). The kernel stages some rows in shared memory, and
/// other rows are too long for it.
fn chained<T: Element>(device: &Device) {
    let seed = seed();
    let forms: Vec<ModulationCase> =
        forms().into_iter().filter(|b| b.shift && b.parameters == [None; 2]).collect();
    for (i, operands) in forms.iter().flat_map(|operands| [operands; 2]).enumerate() {
        let cols = if i % 12 == 0 { 25_000 } else { [1, 7, 64, 260, 1536, 3072][i / 3 % 6] };
        let (shape, dense) = ([2, 3, cols], Layout::dense(cols));
        let odd = Layout { offset: 1, stride: cols + 3 };
        let [read, write] = [[dense; 2], [odd; 2], [dense, odd]][i % 3];
        case!("{cols} columns, {read:?} to {write:?}, {operands:?}");
        let random = &mut random(seed);
        let [x, branch]: [Vec<T>; 2] = [(); 2].map(|()| values(random, 6 * cols as usize));
        let kind = Kind { form: Form::ALL[i % 5], single: i % 4 == 3, offset: read.offset };
        let gate = Operand::<T>::new(device, random, shape, kind);
        let scale = operands.side::<T>(device, random, shape, read.offset);
        let [x_matrix, branch_matrix] =
            [&x, &branch].map(|values| Matrix::upload(device, values, [6, cols], read));
        let [mut normed, mut out] = [(); 2].map(|()| Matrix::<T>::poisoned(device, [6, cols], write));
        residual_tanh_gated_rms_norm_modulated(
            device,
            [x_matrix.view_batches(2), branch_matrix.view_batches(2)],
            gate.view(),
            scale.view(),
            [normed.view_batches_mut(2), out.view_batches_mut(2)],
            EPS,
            Stream::default(),
        )
        .expect("valid arguments");
        let sum = run(device, [&x, &branch], &gate, shape, [dense; 2]);
        same_bits(&out.download(), &sum);
        let by = (Affine::default(), ScaleShift { scale: scale.view(), shift: None });
        let params = AdaNorm { norm: Norm::Rms, eps: EPS, exact: false, ..AdaNorm::default() };
        same_bits(&normed.download(), &ada_norm::run(device, &sum, by, shape, [dense; 2], params));
    }
}
