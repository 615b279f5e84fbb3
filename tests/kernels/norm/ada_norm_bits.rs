//! Tests the bits of the results of `ada_norm` and `ada_norm_pair`. Some tests compute the expected bits on
//! the host, with the torch operators that the ops replace. Other tests take the expected bits from another
//! launch.
use cuda_std::math::rsqrt;
use half::{bf16, f16};
use oxiwarp::{
    AdaNorm, Affine, Device, Element, Norm, Rounding, ScaleShift, Stream, ada_norm, ada_norm_pair, layer_norm,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::operand::{Form, Norming};
use oxiwarp_tests::tensor::{Layout, Matrix, random, values};

use crate::support::ada_norm_case::{PARAMS, run};
use crate::support::modulations::{ModulationCase, forms};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("ada_norm::f32_rounds_as_its_operators", chain::<f32>),
    ("ada_norm::f16_rounds_as_its_operators", chain::<f16>),
    ("ada_norm::bf16_rounds_as_its_operators", chain::<bf16>),
    ("ada_norm::f32_sums_as_torch_rms_norm", fused_sums::<f32>),
    ("ada_norm::f16_sums_as_torch_rms_norm", fused_sums::<f16>),
    ("ada_norm::bf16_sums_as_torch_rms_norm", fused_sums::<bf16>),
    ("ada_norm::in_f32_there_is_one_rounding", one_rounding),
    ("ada_norm::rows_do_not_depend_on_each_other", batch_invariance),
    ("ada_norm::nan_and_infinity_stay_in_their_row", not_finite),
    ("ada_norm_pair::f32_is_two", pair::<f32>),
    ("ada_norm_pair::f16_is_two", pair::<f16>),
    ("ada_norm_pair::bf16_is_two", pair::<bf16>),
];

/// Compares the op with the torch operators that it replaces: the norm, and one operator for each further
/// step of the formula. Each of these operators rounds its result to `T`.
fn chain<T: Element>(device: &Device) {
    let seed = seed();
    let forms = forms().into_iter().filter(|operands| size_of::<T>() == 4 || !operands.is_f32());
    for (i, operands) in forms.enumerate() {
        for (params, cols) in PARAMS.into_iter().zip([640, 260 + i as i64]).chain([(PARAMS[i % 3], 33)]) {
            let (random, shape, dense) = (&mut random(seed), [2, 3, cols], [Layout::dense(cols); 2]);
            let x: Vec<T> = values(random, 6 * cols as usize);
            let by = operands.make::<T>(device, random, shape, 0);
            let n = norm_alone(device, &x, &by, shape, params);
            let round = |value: f32| T::from_f32(value).to_f32();
            let one = |at: usize| {
                let scaled = round(n[at].to_f32() * round(1.0 + by.scale.at(at)));
                T::from_f32(by.shift.as_ref().map_or(scaled, |shift| scaled + shift.at(at)))
            };
            case!("{cols} columns, {operands:?}, {params:?}");
            let expected: Vec<T> = (0..n.len()).map(one).collect();
            same_bits(&run(device, &x, by.views(), shape, dense, params), &expected);
        }
    }
}

/// Computes the norm with weight and bias, but without scale and shift. For LayerNorm, this function calls
/// `layer_norm`. For RMSNorm, it calls `ada_norm` with scale 0. If the RMSNorm rounds before the weight, the
/// host multiplies by the weight and adds the bias.
fn norm_alone<T: Element>(
    device: &Device,
    x: &[T],
    by: &Norming<T>,
    [batch, tokens, cols]: [i64; 3],
    params: AdaNorm,
) -> Vec<T> {
    let rows = [batch * tokens, cols];
    let x = Matrix::upload(device, x, rows, Layout::dense(cols));
    let mut n = Matrix::<T>::poisoned(device, rows, Layout::dense(cols));
    if params.norm == Norm::Layer {
        let (affine, _) = by.views();
        layer_norm(device, x.view(), affine, n.view_mut(), params.eps, Stream::default()).expect("valid");
        return n.download();
    }
    let zeros = device.upload(&vec![T::from_f32(0.0); cols as usize]).expect("device memory");
    let by_nothing =
        oxiwarp::ScaleShift { scale: zeros.view(&[cols]).expect("a vector").into(), shift: None };
    let stream = Stream::default();
    if params.rounding == Rounding::Once {
        ada_norm(device, x.view(), by_nothing, by.views().0, None, n.view_mut(), params, stream)
            .expect("valid");
        return n.download();
    }
    ada_norm(device, x.view(), by_nothing, Affine::default(), None, n.view_mut(), params, stream)
        .expect("valid");
    let round = |value: f32| T::from_f32(value).to_f32();
    let one = |(at, n): (usize, T)| {
        let at = at % cols as usize;
        let scaled = by.weight.as_ref().map_or(n.to_f32(), |weight| round(n.to_f32() * weight.at(at)));
        T::from_f32(by.bias.as_ref().map_or(scaled, |bias| scaled + bias.at(at)))
    };
    n.download().into_iter().enumerate().map(one).collect()
}

/// Compares an RMSNorm with `Rounding::Once` with the steps of the kernel of `torch.nn.RMSNorm`. In torch,
/// thread `t` of 128 sums the squares of the columns `4 t`, `4 t + 1`, `4 t + 2` and `4 t + 3`, and of the
/// columns 512, 1024 and so on further. Four warps reduce the sums of 32 threads each, and then add their
/// sums.
fn fused_sums<T: Element>(device: &Device) {
    let seed = seed();
    let weighted = ModulationCase { parameters: [Some(false), None], ..ModulationCase::USUAL };
    for (cols, operands) in
        [8, 260, 640, 1536, 2048, 3840, 5120, 25_000].into_iter().zip([true, false].into_iter().cycle())
    {
        let operands = if operands { weighted } else { ModulationCase::USUAL };
        let params = AdaNorm { norm: Norm::Rms, rounding: Rounding::Once, ..AdaNorm::default() };
        let (random, shape, dense) = (&mut random(seed), [2, 3, cols], [Layout::dense(cols); 2]);
        let x: Vec<T> = values(random, 6 * cols as usize);
        let by = operands.make::<T>(device, random, shape, 0);
        let inv = x.chunks(cols as usize).map(|row| inv_rms(row, params.eps)).collect::<Vec<_>>();
        let round = |value: f32| T::from_f32(value).to_f32();
        let one = |at: usize| {
            let n = x[at].to_f32() * inv[at / cols as usize];
            let n = round(by.weight.as_ref().map_or(n, |weight| n * weight.at(at % cols as usize)));
            let scaled = round(n * round(1.0 + by.scale.at(at)));
            T::from_f32(by.shift.as_ref().map_or(scaled, |shift| scaled + shift.at(at)))
        };
        case!("{cols} columns, {operands:?}");
        let expected: Vec<T> = (0..x.len()).map(one).collect();
        same_bits(&run(device, &x, by.views(), shape, dense, params), &expected);
    }
}

/// Returns `1 / sqrt(mean of squares + eps)` of a row, with the order of summation of `torch.nn.RMSNorm`.
fn inv_rms<T: Element>(row: &[T], eps: f32) -> f32 {
    let mut sums = [0.0_f32; 128];
    for (at, x) in row.iter().enumerate() {
        let sum = &mut sums[at / 4 % 128];
        *sum = x.to_f32().mul_add(x.to_f32(), *sum);
    }
    let warps: Vec<f32> = sums
        .chunks(32)
        .map(|warp| {
            let mut warp = warp.to_vec();
            while warp.len() > 1 {
                let half = warp.len() / 2;
                warp = (0..half).map(|lane| warp[lane] + warp[lane + half]).collect();
            }
            warp[0]
        })
        .collect();
    let sum = (warps[0] + warps[2]) + (warps[1] + warps[3]);
    rsqrt(sum / row.len() as f32 + eps)
}

/// Tests that the op rounds only its final result if an operand is in f32. Exact mode and fast mode then give
/// the same bits. If no operand is in f32, the bits of the two modes differ.
fn one_rounding(device: &Device) {
    let (seed, cols) = (seed(), 1536);
    for norm in [Norm::Layer, Norm::Rms] {
        for single in [false, true] {
            let (random, shape, dense) = (&mut random(seed), [2, 3, cols], [Layout::dense(cols); 2]);
            let x: Vec<bf16> = values(random, 6 * cols as usize);
            let by =
                ModulationCase { single, ..ModulationCase::USUAL }.make::<bf16>(device, random, shape, 0);
            let [exact, fast] = [true, false].map(|exact| {
                run(device, &x, by.views(), shape, dense, AdaNorm { norm, exact, ..AdaNorm::default() })
            });
            let differ = exact.iter().zip(&fast).filter(|(exact, fast)| exact != fast).count();
            let expected = if single { 0..=0 } else { exact.len() / 20..=exact.len() };
            assert!(expected.contains(&differ), "{differ} of {} differ", exact.len());
        }
    }
}

fn batch_invariance(device: &Device) {
    let seed = seed();
    for params in PARAMS {
        for cols in [5_usize, 128, 1536, 3072, 30_000] {
            let rows = if cols > 3072 { 20 } else { 300 };
            let (random, width) = (&mut random(seed), cols as i64);
            let x: Vec<bf16> = values(random, rows * cols);
            let operands = ModulationCase { form: Form::Vector, ..ModulationCase::USUAL };
            let by = operands.make::<bf16>(device, random, [1, rows as i64, width], 0);
            let some = |rows: std::ops::Range<usize>| {
                let (shape, x) = ([1, rows.len() as i64, width], &x[rows.start * cols..rows.end * cols]);
                run(device, x, by.views(), shape, [Layout::dense(width); 2], params)
            };
            let all = some(0..rows);
            for row in [0, 1, 11, rows - 7] {
                let expected = &all[row * cols..(row + 7) * cols];
                same_bits(&some(row..row + 7), expected);
                same_bits(&some(row..row + 1), &expected[..cols]);
            }
        }
    }
}

/// Tests non-finite values. A non-finite value in `x` affects only the same row of the result. A NaN in the
/// scale affects only the same column.
fn not_finite(device: &Device) {
    let (cols, seed) = (40_usize, seed());
    let (shape, dense) = ([1, 5, cols as i64], [Layout::dense(cols as i64); 2]);
    for params in PARAMS {
        let random = &mut random(seed);
        let mut x: Vec<f32> = values(random, 5 * cols);
        let by = ModulationCase::USUAL.make::<f32>(device, random, shape, 0);
        let right = run(device, &x, by.views(), shape, dense, params);
        (x[cols + 3], x[2 * cols + 7], x[3 * cols + 9]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let y = run(device, &x, by.views(), shape, dense, params);
        assert!(y[cols..2 * cols].iter().all(|y| y.is_nan()), "a NaN reaches its whole row");
        for row in [2, 3] {
            for at in row * cols..(row + 1) * cols {
                // RMSNorm subtracts no mean. If a row contains an infinity, its RMS is infinite, and all
                // finite elements are normalized to 0. The result of such an element is then the shift.
                let shift = by.shift.as_ref().map_or(0.0, |shift| shift.at(at));
                let zero = params.norm == Norm::Rms && x[at].is_finite();
                assert!(if zero { y[at] == shift } else { y[at].is_nan() }, "element {at} is {}", y[at]);
            }
        }
        same_bits(&y[..cols], &right[..cols]);
        same_bits(&y[4 * cols..], &right[4 * cols..]);

        let mut scale = vec![0.5_f32; cols];
        scale[9] = f32::NAN;
        let scale = device.upload(&scale).expect("device memory");
        let by = ScaleShift { scale: scale.view(&[shape[2]]).expect("a vector").into(), shift: None };
        let y = run(device, &x[..cols], (Affine::default(), by), [1, 1, shape[2]], dense, params);
        assert!((0..cols).all(|at| y[at].is_nan() == (at == 9)), "a NaN leaves its column");
    }
}

/// Tests that `ada_norm_pair` (one norm with two pairs of scale and shift) gives the same bits as two calls
/// of `ada_norm`.
fn pair<T: Element>(device: &Device) {
    let seed = seed();
    for (i, operands) in forms().into_iter().step_by(3).enumerate() {
        let cols = if i % 30 == 0 { 25_000 } else { [7, 260, 1536][i % 3] };
        let (params, random, shape) = (PARAMS[i % 6], &mut random(seed), [2, 3, cols]);
        case!("{cols} columns, {operands:?}, {params:?}");
        let (x, dense) = (values::<T>(random, 6 * cols as usize), Layout::dense(cols));
        let [first, second] = [0, i % 2].map(|offset| operands.make::<T>(device, random, shape, offset));
        // The second scale and shift have the same dtypes as the first. An f32 operand in only one of the
        // pairs would change the rounding of both results.
        let ((affine, by), (_, by2)) = (first.views(), second.views());
        let matrix = Matrix::upload(device, &x, [6, cols], dense);
        let [mut y, mut y2] = [(); 2].map(|()| Matrix::<T>::poisoned(device, [6, cols], dense));
        let outs = [y.view_batches_mut(2), y2.view_batches_mut(2)];
        ada_norm_pair(device, matrix.view_batches(2), [by, by2], affine, outs, params, Stream::default())
            .expect("valid arguments");
        same_bits(&y.download(), &run(device, &x, (affine, by), shape, [dense; 2], params));
        same_bits(&y2.download(), &run(device, &x, (affine, by2), shape, [dense; 2], params));
    }
}
