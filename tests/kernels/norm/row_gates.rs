//! Tests the bits of `gated_residual` with a gate whose last dimension has size 1. The host computes the
//! expected values with the same roundings as the op.
use half::{bf16, f16};
use oxiwarp::{Device, Element, GatedResidual, Modulation, Stream, View, gated_residual};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values};

use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("gated_residual::f32_row_gates", table::<f32>),
    ("gated_residual::f16_row_gates", table::<f16>),
    ("gated_residual::bf16_row_gates", table::<bf16>),
    ("gated_residual::head_gates", heads),
    ("gated_residual::bad_row_gates", refuses),
];

/// Batches and tokens of `x`.
const ROWS: [i64; 2] = [2, 3];

/// A gate of shape `[batches, tokens, 1]`, which has one number per row. In memory, a NaN precedes each
/// number, so the gate has stride 2.
struct Numbers<T> {
    shape: [i64; 3],
    values: Vec<T>,
    same: oxiwarp::Buffer<T>,
    single: Option<oxiwarp::Buffer<f32>>,
}

impl<T: Element> Numbers<T> {
    fn new(device: &Device, seed: u64, [batches, tokens]: [i64; 2], single: bool) -> Self {
        let values: Vec<T> = values(&mut random(seed), (batches * tokens) as usize);
        let apart: Vec<T> = values.iter().flat_map(|value| [T::from_bits(u32::MAX), *value]).collect();
        let wide: Vec<f32> = apart.iter().map(|value| value.to_f32()).collect();
        let same = device.upload(&apart).expect("device memory");
        let single = single.then(|| device.upload(&wide).expect("device memory"));
        Self { shape: [batches, tokens, 1], values, same, single }
    }
    fn view(&self) -> View<'_> {
        let strides = [2 * self.shape[1], 2, 1];
        match &self.single {
            Some(single) => single.view_strided(1, &self.shape, &strides),
            None => self.same.view_strided(1, &self.shape, &strides),
        }
        .expect("inside")
    }
    /// Returns the number for a row of `x`.
    fn of_row(&self, row: i64) -> f32 {
        let [batches, tokens, _] = self.shape;
        let (batch, token) = (row / ROWS[1] % batches, row % ROWS[1] % tokens);
        self.values[(batch * tokens + token) as usize].to_f32()
    }
}

fn check<T: Element>(device: &Device, cols: i64, [read, write]: [Layout; 2], gate: &Numbers<T>) {
    let (random, shape) = (&mut random(seed()), [ROWS[0] * ROWS[1], cols]);
    let [x, y]: [Vec<T>; 2] = [(); 2].map(|()| values(random, (shape[0] * cols) as usize));
    for (exact, clip) in [(true, false), (false, false), (true, true)] {
        let [x_rows, y_rows] = [&x, &y].map(|values| Matrix::upload(device, values, shape, read));
        let mut sum = Matrix::<T>::poisoned(device, shape, write);
        let inputs = (x_rows.view_batches(ROWS[0]), y_rows.view_batches(ROWS[0]));
        let out = sum.view_batches_mut(ROWS[0]);
        let (params, stream) = (GatedResidual { exact, clip }, Stream::default());
        gated_residual(device, inputs.0, inputs.1, gate.view().into(), None, out, params, stream)
            .expect("valid");
        let round = exact && !(gate.single.is_some() && size_of::<T>() == 2);
        let one = |at: usize| {
            let product = gate.of_row(at as i64 / cols) * y[at].to_f32();
            let product = if round { T::from_f32(product).to_f32() } else { product };
            let sum = T::from_f32(x[at].to_f32() + product);
            if clip { T::from_f32(sum.to_f32().clamp(-65504.0, 65504.0)) } else { sum }
        };
        same_bits(&sum.download(), &(0..x.len()).map(one).collect::<Vec<_>>());
    }
}

/// Tests four shapes of the gate. The gate has one number per row, one per batch, one per token (the same for
/// all batches), or a single number for all rows.
fn table<T: Element>(device: &Device) {
    for cols in [1_i64, 2, 7, 64, 129, 640, 2050] {
        let (dense, odd) = (Layout::dense(cols), Layout { offset: 1, stride: cols + 3 });
        for of_gate in [ROWS, [2, 1], [1, 3], [1, 1]] {
            for single in [false, true] {
                let gate = Numbers::<T>::new(device, seed(), of_gate, single);
                for layouts in [[dense; 2], [odd; 2], [odd, dense], [dense, odd]] {
                    case!("{cols} columns, {layouts:?}, gate {of_gate:?}, f32 {single}");
                    check(device, cols, layouts, &gate);
                }
            }
        }
    }
}

/// Tests gates for an `x` of shape `[B, S, H, D]`. Some have one number per head (`[1, 1, H, 1]` and `[H,
/// 1]`), and one has a single number (`[1]`).
fn heads(device: &Device) {
    let (random, [batches, tokens, heads, dim]) = (&mut random(seed()), [2_i64, 5, 3, 24]);
    let shape = [batches, tokens, heads, dim];
    let len = shape.iter().product::<i64>() as usize;
    let [x, y, gate]: [Vec<bf16>; 3] = [len, len, heads as usize].map(|len| values(random, len));
    let [x_memory, y_memory, numbers] = [&x, &y, &gate].map(|v| device.upload(v).expect("device memory"));
    for of_gate in [vec![1, 1, heads, 1], vec![heads, 1], vec![1]] {
        let mut sum = device.alloc::<bf16>(len).expect("device memory");
        let views = [x_memory.view(&shape), y_memory.view(&shape)].map(|view| view.expect("dense"));
        let view: Modulation =
            numbers.view_strided(0, &of_gate, &vec![1; of_gate.len()]).expect("inside").into();
        let out = sum.view_mut(&shape).expect("dense");
        gated_residual(
            device,
            views[0],
            views[1],
            view,
            None,
            out,
            GatedResidual::default(),
            Stream::default(),
        )
        .expect("valid");
        let one = |at: usize| {
            let head = if of_gate == [1] { 0 } else { at / dim as usize % heads as usize };
            let product = bf16::from_f32(gate[head].to_f32() * y[at].to_f32());
            bf16::from_f32(x[at].to_f32() + product.to_f32())
        };
        same_bits(&sum.download().expect("a kernel that ran"), &(0..len).map(one).collect::<Vec<_>>());
    }
}

/// Tests gates that the op rejects. One has one column and a table (a vector that is added to the gate), and
/// others do not broadcast to `x`. A rejected call must write nothing.
fn refuses(device: &Device) {
    let (x, mut sum) = (device.upload(&[1.0_f32; 24]).unwrap(), device.alloc::<f32>(24).unwrap());
    let of = |shape: &[i64]| x.view(shape).unwrap();
    let rows = of(&[3, 8]);
    let mut says = |gate: Modulation, text: &str| {
        let out = sum.view_mut(&[3, 8]).unwrap();
        let result =
            gated_residual(device, rows, rows, gate, None, out, GatedResidual::default(), Stream::default());
        let error = result.expect_err(text).to_string();
        assert!(error.contains(text), "the error is: {error}\nexpected in it: {text}");
    };
    let table = Modulation { value: of(&[3, 1]), table: Some(of(&[8])) };
    says(table, "gate has shape [3, 1], expected a last dimension of 8, because there is a table");
    says(of(&[2, 1]).into(), "gate has shape [2, 1], expected one that broadcasts to [3, 8]");
    assert!(sum.download().unwrap().iter().all(|sum| sum.is_nan()), "something was written");
}
