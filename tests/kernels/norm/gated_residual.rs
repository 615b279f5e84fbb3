//! Tests the bits of the results of `gated_residual` and `gated_residual_ada_norm`. The host computes the
//! expected sum with the same roundings as the op.
use half::{bf16, f16};
use oxiwarp::{
    AdaNorm, Device, Element, GatedResidual, Modulation, Norm, Stream, gated_residual,
    gated_residual_ada_norm,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::operand::{Form, Side};
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values};

use crate::support::ada_norm_case::{self as ada_norm, PARAMS};
use crate::support::modulations::{ModulationCase, forms, in_batches};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("gated_residual::f32_table", table::<f32>),
    ("gated_residual::f16_table", table::<f16>),
    ("gated_residual::bf16_table", table::<bf16>),
    ("gated_residual::f32_layouts", layouts::<f32>),
    ("gated_residual::f16_layouts", layouts::<f16>),
    ("gated_residual::bf16_layouts", layouts::<bf16>),
    ("gated_residual::bf16_table_anywhere", table_anywhere::<bf16>),
    ("gated_residual::f16_clips", clips::<f16>),
    ("gated_residual::bf16_clips", clips::<bf16>),
    ("gated_residual::f32_clips", clips::<f32>),
    ("gated_residual_ada_norm::f32_is_the_two", both::<f32>),
    ("gated_residual_ada_norm::f16_is_the_two", both::<f16>),
    ("gated_residual_ada_norm::bf16_is_the_two", both::<bf16>),
    ("gated_residual_ada_norm::clips_before_the_norm", clips_before_norm),
    ("gated_residual_ada_norm::rows_do_not_depend_on_each_other", batch_invariance),
];

/// Returns all combinations of gate and table (a vector that is added to the gate). Each shape and dtype of
/// the gate occurs without a table, and with a table of each dtype.
fn gates() -> Vec<ModulationCase> {
    let plain = |operands: &ModulationCase| operands.shift && operands.parameters == [None; 2];
    forms().into_iter().filter(plain).collect()
}

/// Runs the op with newly allocated memory and returns the sum.
fn run<T: Element>(
    device: &Device,
    [x, y]: [&[T]; 2],
    gate: Modulation,
    [batch, tokens, cols]: [i64; 3],
    [read, write]: [Layout; 2],
    params: GatedResidual,
) -> Vec<T> {
    let rows = [batch * tokens, cols];
    let [x, y] = [x, y].map(|values| Matrix::upload(device, values, rows, read));
    let mut sum = Matrix::<T>::poisoned(device, rows, write);
    let (x, y, out) = (x.view_batches(batch), y.view_batches(batch), sum.view_batches_mut(batch));
    gated_residual(device, x, y, gate, None, out, params, Stream::default()).expect("valid arguments");
    sum.download()
}

/// Computes what the op should return. In exact mode, each torch operator that the op replaces rounds its
/// result to `T`. If the gate is in f32, or if `exact` is false, only the final result is rounded.
fn expected<T: Element>([x, y]: [&[T]; 2], gate: Option<&Side<T>>, params: GatedResidual) -> Vec<T> {
    let single = gate.is_some_and(Side::is_f32);
    let one = |at: usize| {
        let product = gate.map_or(1.0, |gate| gate.at(at)) * y[at].to_f32();
        let product = if params.exact && !single { T::from_f32(product).to_f32() } else { product };
        let sum = T::from_f32(x[at].to_f32() + product);
        if params.clip && !sum.to_f32().is_nan() {
            T::from_f32(sum.to_f32().clamp(-65504.0, 65504.0))
        } else {
            sum
        }
    };
    (0..x.len()).map(one).collect()
}

/// Checks one shape and layout in every mode.
fn check<T: Element>(
    device: &Device,
    seed: u64,
    shape: [i64; 3],
    layouts: [Layout; 2],
    operands: ModulationCase,
) {
    let (random, len) = (&mut random(seed), shape.iter().product::<i64>() as usize);
    let [x, y]: [Vec<T>; 2] = [(); 2].map(|()| values(random, len));
    let gate = operands.side::<T>(device, random, shape, layouts[0].offset);
    for (exact, clip) in [(true, false), (false, false), (true, true)] {
        let params = GatedResidual { exact, clip };
        let sum = run(device, [&x, &y], gate.view(), shape, layouts, params);
        same_bits(&sum, &expected([&x, &y], Some(&gate), params));
    }
}

fn table<T: Element>(device: &Device) {
    let (seed, gates) = (seed(), gates());
    for (i, shape) in shapes().into_iter().enumerate() {
        let some = gates.iter().cycle().skip(i * 7).take(if shape.cols > 300 { 2 } else { gates.len() });
        for operands in some {
            case!("{} x {} ({}), {operands:?}", shape.rows, shape.cols, shape.why);
            let dense = [Layout::dense(shape.cols); 2];
            check::<T>(device, seed, in_batches(shape.rows, shape.cols), dense, *operands);
        }
    }
}

fn layouts<T: Element>(device: &Device) {
    let seed = seed();
    for cols in [1, 64, 129, 640] {
        let dense = Layout::dense(cols);
        let (gaps, odd) = (Layout { offset: 16, stride: cols + 64 }, Layout { offset: 1, stride: cols + 3 });
        for operands in gates() {
            for layouts in [[gaps; 2], [odd; 2], [odd, dense], [dense, odd]] {
                case!("{cols} columns, {layouts:?}, {operands:?}");
                check::<T>(device, seed, [2, 3, cols], layouts, operands);
            }
        }
    }
}

/// Tests a gate whose table (a vector that is added to the gate) is not aligned to 16 bytes, while all rows
/// are.
fn table_anywhere<T: Element>(device: &Device) {
    let (random, dense) = (&mut random(seed()), [Layout::dense(64); 2]);
    let [x, y, gate, table]: [Vec<T>; 4] = [384, 384, 64, 65].map(|len| values(random, len));
    let [gate, moved, table] =
        [&gate[..], &table, &table[1..]].map(|v| device.upload(v).expect("device memory"));
    let sum = |table| {
        let gate = Modulation { value: gate.view(&[64]).expect("a vector"), table: Some(table) };
        run(device, [&x, &y], gate, [2, 3, 64], dense, GatedResidual { exact: true, clip: false })
    };
    let [table, moved] = [table.view(&[64]), moved.view_strided(1, &[64], &[1])];
    same_bits(&sum(moved.expect("a vector")), &sum(table.expect("a vector")));
}

/// Tests the option `clip`, which clips the sum to the range of f16, -65504 to 65504. An infinite sum is
/// clipped too, and a NaN stays NaN. In bf16, the limit 65504 is rounded to 65536.
fn clips<T: Element>(device: &Device) {
    let largest = T::from_f32(65504.0).to_f32();
    let huge = [60000.0, -60000.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0, 60000.0, 0.0];
    let added = [60000.0, -60000.0, 1.0, 1.0, 1.0, 2.0, -60000.0, f32::NEG_INFINITY];
    let wide = |values: [f32; 8]| values.map(T::from_f32);
    let (x, y, gate) = (wide(huge), wide(added), device.upload(&wide([1.0; 8])).expect("device memory"));
    let shape = [1, 1, 8];
    for exact in [true, false] {
        let sum = |clip| {
            let gate = gate.view(&[8]).expect("a vector").into();
            let dense = [Layout::dense(8); 2];
            run(device, [&x, &y], gate, shape, dense, GatedResidual { exact, clip }).into_iter()
        };
        let clipped: Vec<f32> = sum(true).map(|sum| sum.to_f32()).collect();
        assert!(clipped[4].is_nan(), "a NaN stays");
        let right = [largest, -largest, largest, -largest, 3.0, 0.0, -largest];
        assert_eq!([&clipped[..4], &clipped[5..]].concat(), right, "exact {exact}");
        let free: Vec<f32> = sum(false).map(|sum| sum.to_f32()).collect();
        assert!(free[2] == f32::INFINITY && free[4].is_nan() && free[7] == f32::NEG_INFINITY, "{free:?}");
        assert!(free[0] > largest && free[1] < -largest, "{free:?}");
    }
}

/// The operands of `gated_residual_ada_norm`.
pub struct Both<T> {
    pub xy: [Vec<T>; 2],
    pub gate: Option<Side<T>>,
    pub by: oxiwarp_tests::operand::Norming<T>,
}

/// Runs `gated_residual_ada_norm` with newly allocated memory. Returns the normalized rows and the sum.
fn run_both<T: Element>(
    device: &Device,
    Both { xy, gate, by }: &Both<T>,
    [batch, tokens, cols]: [i64; 3],
    [read, write]: [Layout; 2],
    params: (AdaNorm, GatedResidual),
) -> [Vec<T>; 2] {
    let rows = [batch * tokens, cols];
    let [x, y] = [0, 1].map(|i| Matrix::upload(device, &xy[i], rows, read));
    let [mut normed, mut sum] = [(); 2].map(|()| Matrix::<T>::poisoned(device, rows, write));
    let (affine, by) = by.views();
    let inputs = [x.view_batches(batch), y.view_batches(batch)];
    let outputs = [normed.view_batches_mut(batch), sum.view_batches_mut(batch)];
    let gate = gate.as_ref().map(Side::view);
    gated_residual_ada_norm(device, inputs, gate, by, affine, None, outputs, params, Stream::default())
        .expect("valid arguments");
    [normed.download(), sum.download()]
}

/// Runs `gated_residual_ada_norm` and panics if a bit of its results differs from `gated_residual` followed
/// by `ada_norm`.
pub fn expect_the_two<T: Element>(
    device: &Device,
    both: &Both<T>,
    shape: [i64; 3],
    layouts: [Layout; 2],
    (params, residual): (AdaNorm, GatedResidual),
) {
    let [normed, sum] = run_both(device, both, shape, layouts, (params, residual));
    same_bits(&sum, &expected([&both.xy[0], &both.xy[1]], both.gate.as_ref(), residual));
    let dense = [Layout::dense(shape[2]); 2];
    same_bits(&normed, &ada_norm::run(device, &sum, both.by.views(), shape, dense, params));
}

/// Checks that the op gives the same bits as `gated_residual` followed by `ada_norm`, with and without a
/// gate.
///
/// The kernel stages some rows in shared memory. Other rows are too long for shared memory. The gate may have
/// another shape and dtype than scale and shift.
fn both<T: Element>(device: &Device) {
    let (seed, forms, gates) = (seed(), forms(), gates());
    for (i, operands) in forms.into_iter().step_by(2).enumerate() {
        let cols = if i % 40 == 0 { 25_000 } else { [7, 64, 260, 1536, 3072][i % 5] };
        let (shape, dense) = ([2, 3, cols], Layout::dense(cols));
        let odd = Layout { offset: 1, stride: cols + 3 };
        let layouts = [[dense; 2], [dense; 2], [odd; 2], [dense, odd]][i % 4];
        let random = &mut random(seed);
        let xy: [Vec<T>; 2] = [(); 2].map(|()| values(random, 6 * cols as usize));
        let gate = gates[i % gates.len()];
        let gate = (i % 6 != 5).then(|| gate.side::<T>(device, random, shape, layouts[0].offset));
        let by = operands.make::<T>(device, random, shape, layouts[0].offset);
        let (params, clip) = (PARAMS[i % 6], i % 3 == 0);
        let residual = GatedResidual { exact: params.exact, clip };
        case!("{cols} columns, {layouts:?}, {operands:?}, {params:?}");
        expect_the_two(device, &Both { xy, gate, by }, shape, layouts, (params, residual));
    }
}

/// Tests the option `clip` with sums that overflow f16. The sum must be clipped before it is normalized, so
/// that the result is finite.
fn clips_before_norm(device: &Device) {
    let cols = 25_000;
    let (random, shape, dense) = (&mut random(seed()), [1, 2, cols], Layout::dense(cols));
    let by = ModulationCase::USUAL.make::<f16>(device, random, shape, 0);
    let xy = [(); 2].map(|()| vec![f16::from_f32(40000.0); 2 * cols as usize]);
    let both = Both { xy, gate: None, by };
    for params in PARAMS {
        let residual = GatedResidual { exact: params.exact, clip: true };
        let [normed, sum] = run_both(device, &both, shape, [dense; 2], (params, residual));
        assert!(sum.iter().all(|sum| *sum == f16::MAX));
        same_bits(&normed, &ada_norm::run(device, &sum, both.by.views(), shape, [dense; 2], params));
        assert!(normed.iter().all(|normed| normed.is_finite()));
    }
}

fn batch_invariance(device: &Device) {
    let (seed, rows) = (seed(), 300_usize);
    for (norm, cols) in [(Norm::Layer, 128_usize), (Norm::Rms, 1536), (Norm::Layer, 3072)] {
        let (random, width) = (&mut random(seed), cols as i64);
        let operands = ModulationCase { form: Form::Vector, ..ModulationCase::USUAL };
        let xy: [Vec<bf16>; 2] = [(); 2].map(|()| values(random, rows * cols));
        let make = |rows: std::ops::Range<usize>| {
            let random = &mut oxiwarp_tests::tensor::random(seed + 1);
            let (shape, part) = ([1, rows.len() as i64, width], rows.start * cols..rows.end * cols);
            let gate = Some(operands.side(device, random, shape, 0));
            let by = operands.make(device, random, shape, 0);
            let both = Both { xy: [0, 1].map(|i| xy[i][part.clone()].to_vec()), gate, by };
            let params = (AdaNorm { norm, ..AdaNorm::default() }, GatedResidual::default());
            run_both(device, &both, shape, [Layout::dense(width); 2], params)
        };
        let all = make(0..rows);
        for (i, all) in all.iter().enumerate() {
            for row in [0, 11, rows - 7] {
                let expected = &all[row * cols..(row + 7) * cols];
                same_bits(&make(row..row + 7)[i], expected);
                same_bits(&make(row..row + 1)[i], &expected[..cols]);
            }
        }
    }
}
