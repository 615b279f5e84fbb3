//! Tests the kernels for operands of mixed dtypes, operands with one column, and modulations that an index
//! chooses. The expected bits come from the same op with converted operands: each operand is in f32 or in the
//! dtype of the rows, and has all rows and columns.
use half::{bf16, f16};
use oxiwarp::{
    AdaNorm, Affine, Buffer, Device, Dtype, Element, GatedResidual, LaunchOverride, Modulation,
    Overridable as _, ScaleShift, Stream, View, ada_norm, gated_residual, gated_residual_ada_norm,
    layer_norm, modulate,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values};
use rand::rngs::StdRng;

use crate::support::ada_norm_case::PARAMS;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("mixed::f32_norms", norms::<f32>),
    ("mixed::f16_norms", norms::<f16>),
    ("mixed::bf16_norms", norms::<bf16>),
    ("mixed::f32_residuals", residuals::<f32>),
    ("mixed::f16_residuals", residuals::<f16>),
    ("mixed::bf16_residuals", residuals::<bf16>),
    ("mixed::f32_modulations", modulations::<f32>),
    ("mixed::bf16_modulations", modulations::<bf16>),
    ("mixed::f32_layer_norms", layer_norms::<f32>),
    ("mixed::bf16_layer_norms", layer_norms::<bf16>),
    ("mixed::bad_index", bad_index),
];

/// Batches and tokens of `x`.
const ROWS: [i64; 2] = [2, 3];
/// Rows of an operand that an index chooses.
const CHOSEN: usize = 4;
/// The chosen row for each row of `x`. A negative or too large integer chooses the last row.
const INDEX: [i64; 6] = [2, 0, 3, 1, -1, 1 << 40];

/// The shape of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// `[N]`.
    Vector,
    /// `[B, 1, N]`.
    Batch,
    /// `[B, S, 1]`.
    Rows,
    /// `[1]`.
    One,
    /// `[]`.
    Scalar,
    /// `[4, N]`, and an index.
    Chosen,
}

enum Memory {
    F32(Buffer<f32>),
    F16(Buffer<f16>),
    Bf16(Buffer<bf16>),
}

/// An operand, and its value for each element of `x`.
struct Operand {
    memory: Memory,
    dtype: Dtype,
    shape: Vec<i64>,
    /// The value for each element of `x`, or for each column of a vector.
    whole: Vec<f32>,
}

fn rounded(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_f32(value).to_f32(),
        Dtype::Bf16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

impl Operand {
    fn new(device: &Device, random: &mut StdRng, cols: usize, shape: Shape, dtype: Dtype) -> Self {
        let [batch, tokens] = ROWS.map(|size| size as usize);
        let (rows, of_row): (usize, Box<dyn Fn(usize) -> usize>) = match shape {
            Shape::Vector | Shape::One | Shape::Scalar => (1, Box::new(|_| 0)),
            Shape::Batch => (batch, Box::new(move |row| row / tokens)),
            Shape::Rows => (batch * tokens, Box::new(|row| row)),
            Shape::Chosen => (CHOSEN, Box::new(|row| (INDEX[row] as u64).min(CHOSEN as u64 - 1) as usize)),
        };
        let own = if matches!(shape, Shape::Rows | Shape::One | Shape::Scalar) { 1 } else { cols };
        let own_values: Vec<f32> =
            values::<f32>(random, rows * own).into_iter().map(|value| rounded(dtype, value)).collect();
        let at = |at: usize| own_values[of_row(at / cols) * own + (at % cols) % own];
        let whole = (0..batch * tokens * cols).map(at).collect();
        let n = own as i64;
        let shape = match shape {
            Shape::Vector | Shape::One => vec![n],
            Shape::Scalar => vec![],
            Shape::Batch => vec![ROWS[0], 1, n],
            Shape::Rows => vec![ROWS[0], ROWS[1], 1],
            Shape::Chosen => vec![CHOSEN as i64, n],
        };
        Self { memory: Memory::of(device, dtype, &own_values), dtype, shape, whole }
    }

    fn vector(device: &Device, random: &mut StdRng, cols: usize, dtype: Dtype) -> Self {
        let mut made = Self::new(device, random, cols, Shape::Vector, dtype);
        made.whole.truncate(cols);
        made
    }

    /// Returns the operand with new values for each element of `x`, in f32 or in the dtype `T`.
    fn converted<T: Element>(device: &Device, whole: &[f32], shape: &[i64], same: bool) -> Self {
        let dtype = if same { T::DTYPE } else { Dtype::F32 };
        Self { memory: Memory::of(device, dtype, whole), dtype, shape: shape.to_vec(), whole: whole.to_vec() }
    }

    fn view(&self) -> View<'_> {
        match &self.memory {
            Memory::F32(memory) => memory.view(&self.shape),
            Memory::F16(memory) => memory.view(&self.shape),
            Memory::Bf16(memory) => memory.view(&self.shape),
        }
        .expect("inside")
    }
}

impl Memory {
    fn of(device: &Device, dtype: Dtype, values: &[f32]) -> Self {
        fn upload<E: Element>(device: &Device, values: &[f32]) -> Buffer<E> {
            let values: Vec<E> = values.iter().map(|value| E::from_f32(*value)).collect();
            device.upload(&values).expect("device memory")
        }
        match dtype {
            Dtype::F16 => Self::F16(upload(device, values)),
            Dtype::Bf16 => Self::Bf16(upload(device, values)),
            _ => Self::F32(upload(device, values)),
        }
    }
}

/// A scale, shift or gate with an optional table.
struct Side {
    value: Operand,
    table: Option<Operand>,
}

impl Side {
    fn new(
        device: &Device,
        random: &mut StdRng,
        cols: usize,
        (shape, dtype, table): (Shape, Dtype, Option<Dtype>),
    ) -> Self {
        let table = table.filter(|_| !matches!(shape, Shape::Rows | Shape::One | Shape::Scalar));
        Self {
            value: Operand::new(device, random, cols, shape, dtype),
            table: table.map(|dtype| Operand::vector(device, random, cols, dtype)),
        }
    }

    fn view(&self) -> Modulation<'_> {
        Modulation { value: self.value.view(), table: self.table.as_ref().map(Operand::view) }
    }

    /// Returns the dtype of `table + value`.
    fn dtype(&self) -> Dtype {
        match &self.table {
            Some(table) if table.dtype != self.value.dtype => Dtype::F32,
            _ => self.value.dtype,
        }
    }

    /// Returns `table + value` for each element of `x`. If both have one dtype, torch rounds the sum to it.
    fn whole(&self) -> Vec<f32> {
        let Some(table) = &self.table else { return self.value.whole.clone() };
        let sum =
            |(at, value): (usize, &f32)| rounded(self.dtype(), table.whole[at % table.whole.len()] + value);
        self.value.whole.iter().enumerate().map(sum).collect()
    }
}

/// All cases of one scale, shift or gate.
fn sides() -> Vec<(Shape, Dtype, Option<Dtype>)> {
    let mut all = vec![];
    for shape in [Shape::Batch, Shape::Rows, Shape::One, Shape::Scalar, Shape::Chosen] {
        for dtype in Dtype::FLOATS {
            for table in [None, Some(Dtype::Bf16), Some(Dtype::F32)] {
                all.push((shape, dtype, table));
            }
        }
    }
    all
}

/// The index for a case, in i64 and in i32.
struct Index {
    wide: Buffer<i64>,
    narrow: Buffer<i32>,
}

impl Index {
    fn new(device: &Device) -> Self {
        let narrow = INDEX.map(|row| i32::try_from(row).unwrap_or(i32::MAX));
        Self { wide: device.upload(&INDEX).expect("memory"), narrow: device.upload(&narrow).expect("memory") }
    }
    fn view(&self, shape: Shape, wide: bool) -> Option<View<'_>> {
        let view = if wide { self.wide.view(&ROWS) } else { self.narrow.view(&ROWS) };
        (shape == Shape::Chosen).then(|| view.expect("inside"))
    }
}

/// Rows `x` in a layout that allows vec4s or not.
fn rows<T: Element>(device: &Device, values: &[T], cols: usize, odd: bool) -> Matrix<T> {
    let cols = cols as i64;
    let layout = if odd { Layout { offset: 1, stride: cols + 3 } } else { Layout::dense(cols) };
    Matrix::upload(device, values, [ROWS[0] * ROWS[1], cols], layout)
}

fn poisoned<T: Element>(device: &Device, cols: usize) -> Matrix<T> {
    Matrix::poisoned(device, [ROWS[0] * ROWS[1], cols as i64], Layout::dense(cols as i64))
}

/// Runs `launch` and panics if it did not launch a kernel with `mixed` in its name.
fn by_mixed(device: &Device, launch: impl FnOnce(&Device)) {
    let device = device.with_override(LaunchOverride::default());
    launch(&device);
    let launches = device.take_launches().concat();
    assert!(launches.contains("_mixed_any"), "{launches}");
}

/// The operands of a norm, and the same operands converted.
struct Norming {
    scale: Side,
    shift: Option<Side>,
    weight: Option<Operand>,
    converted: [Operand; 2],
    converted_weight: Option<Operand>,
}

impl Norming {
    fn new<T: Element>(device: &Device, random: &mut StdRng, cols: usize, case: usize) -> (Self, Shape) {
        let sides = sides();
        let of_scale = sides[case % sides.len()];
        let same_shape: Vec<_> =
            sides.iter().filter(|side| (side.0 == Shape::Chosen) == (of_scale.0 == Shape::Chosen)).collect();
        let of_shift = *same_shape[case * 7 % same_shape.len()];
        let scale = Side::new(device, random, cols, of_scale);
        let shift = (case % 4 != 3).then(|| Side::new(device, random, cols, of_shift));
        let weight =
            (case % 3 != 2).then(|| Operand::vector(device, random, cols, Dtype::FLOATS[case / 3 % 3]));
        let mut dtypes = vec![scale.dtype()];
        dtypes.extend(shift.as_ref().map(Side::dtype));
        dtypes.extend(weight.as_ref().map(|weight| weight.dtype));
        let same = dtypes.iter().all(|dtype| *dtype == T::DTYPE);
        let shape = [ROWS[0], ROWS[1], cols as i64];
        let nothing = vec![0.0; scale.value.whole.len()];
        let shift_values = shift.as_ref().map_or(nothing, Side::whole);
        let converted =
            [scale.whole(), shift_values].map(|whole| Operand::converted::<T>(device, &whole, &shape, same));
        let converted_weight = weight
            .as_ref()
            .map(|weight| Operand::converted::<T>(device, &weight.whole, &[cols as i64], same));
        (Self { scale, shift, weight, converted, converted_weight }, of_scale.0)
    }

    fn views(&self) -> (Affine<'_>, ScaleShift<'_>) {
        let by = ScaleShift { scale: self.scale.view(), shift: self.shift.as_ref().map(Side::view) };
        (Affine { weight: self.weight.as_ref().map(Operand::view), bias: None }, by)
    }

    /// Computes the expected result with the converted operands.
    fn expected<T: Element>(&self, device: &Device, x: &[T], cols: usize, params: AdaNorm) -> Vec<T> {
        let (x, mut y) = (rows(device, x, cols, false), poisoned::<T>(device, cols));
        let [scale, shift] = [0, 1].map(|i| self.converted[i].view());
        let by = ScaleShift { scale: scale.into(), shift: self.shift.as_ref().map(|_| shift.into()) };
        let affine = Affine { weight: self.converted_weight.as_ref().map(Operand::view), bias: None };
        let (x, out) = (x.view_batches(ROWS[0]), y.view_batches_mut(ROWS[0]));
        ada_norm(device, x, by, affine, None, out, params, Stream::default()).expect("valid");
        y.download()
    }

    /// Returns whether the op needs a kernel with `mixed` in its name.
    fn is_mixed<T: Element>(&self, shape: Shape) -> bool {
        let known = |operand: &Operand| [T::DTYPE, Dtype::F32].contains(&operand.dtype);
        let sides = [Some(&self.scale), self.shift.as_ref()];
        let known_side = |side: &&Side| known(&side.value) && side.table.as_ref().is_none_or(known);
        let one_column =
            sides.iter().flatten().any(|side| [None, Some(&1)].contains(&side.value.shape.last()));
        shape == Shape::Chosen
            || one_column
            || !sides.iter().flatten().all(known_side)
            || !self.weight.as_ref().is_none_or(known)
    }
}

fn norms<T: Element>(device: &Device) {
    let (seed, index) = (seed(), Index::new(device));
    for case in 0..3 * sides().len() {
        let cols = if case == 40 { 25_000 } else { [7, 260, 640, 1536][case % 4] };
        let (random, params) = (&mut random(seed + case as u64), PARAMS[case / 2 % 6]);
        let (by, shape) = Norming::new::<T>(device, random, cols, case);
        if !by.is_mixed::<T>(shape) {
            continue;
        }
        case!("case {case}, {cols} columns, {shape:?}, {params:?}");
        let x: Vec<T> = values(random, 6 * cols);
        let (x_rows, mut y) = (rows(device, &x, cols, case % 5 == 4), poisoned::<T>(device, cols));
        by_mixed(device, |device| {
            let ((affine, by), index) = (by.views(), index.view(shape, case % 2 == 0));
            let (x, out) = (x_rows.view_batches(ROWS[0]), y.view_batches_mut(ROWS[0]));
            ada_norm(device, x, by, affine, index, out, params, Stream::default()).expect("valid");
        });
        same_bits(&y.download(), &by.expected(device, &x, cols, params));
    }
}

/// Computes `x + gate * y` on the host, as torch's operators do in exact mode, or with one rounding.
fn expected_sum<T: Element>(x: &[T], y: &Operand, gate: Option<&Side>, params: GatedResidual) -> Vec<T> {
    let whole = gate.map(Side::whole);
    let one = |at: usize| {
        let product = match (&whole, gate) {
            (Some(whole), Some(gate)) if params.exact && gate.dtype() == y.dtype => {
                rounded(y.dtype, whole[at] * y.whole[at])
            }
            (Some(whole), _) => whole[at] * y.whole[at],
            _ => y.whole[at],
        };
        let sum = T::from_f32(x[at].to_f32() + product);
        if params.clip { T::from_f32(sum.to_f32().clamp(-65504.0, 65504.0)) } else { sum }
    };
    (0..x.len()).map(one).collect()
}

/// Tests `gated_residual` and `gated_residual_ada_norm` with a branch `y` of each dtype.
fn residuals<T: Element>(device: &Device) {
    let (seed, index) = (seed(), Index::new(device));
    for case in 0..2 * sides().len() {
        let cols = if case == 20 { 25_000 } else { [7, 260, 640, 1536][case % 4] };
        let (random, params) = (&mut random(seed + case as u64), PARAMS[case / 2 % 6]);
        let (by, shape) = Norming::new::<T>(device, random, cols, case * 5 + 1);
        let of_gate = sides()[case % sides().len()];
        let gate = Side::new(
            device,
            random,
            cols,
            (if shape == Shape::Chosen { shape } else { of_gate.0 }, of_gate.1, of_gate.2),
        );
        let x: Vec<T> = values(random, 6 * cols);
        let mut y = Operand::new(device, random, cols * 6, Shape::Vector, Dtype::FLOATS[case / 2 % 3]);
        y.whole.truncate(6 * cols);
        y.shape = vec![ROWS[0], ROWS[1], cols as i64];
        let residual = GatedResidual { exact: params.exact, clip: case % 7 == 6 };
        case!("case {case}, {cols} columns, {shape:?}, {of_gate:?}, y {}, {params:?}", y.dtype);
        let x_rows = rows(device, &x, cols, case % 5 == 4);
        let x_view = || x_rows.view_batches(ROWS[0]);
        let chosen = |shape| index.view(shape, case % 2 == 0);
        if of_gate.0 != Shape::Chosen || shape == Shape::Chosen {
            let gate_shape = if shape == Shape::Chosen { shape } else { of_gate.0 };
            let (expected, mut sum) =
                (expected_sum(&x, &y, Some(&gate), residual), poisoned::<T>(device, cols));
            let out = sum.view_batches_mut(ROWS[0]);
            gated_residual(
                device,
                x_view(),
                y.view(),
                gate.view(),
                chosen(gate_shape),
                out,
                residual,
                Stream::default(),
            )
            .expect("valid");
            same_bits(&sum.download(), &expected);
        }
        let gate = (case % 6 != 5 && (of_gate.0 != Shape::Chosen || shape == Shape::Chosen)).then_some(&gate);
        let expected = expected_sum(&x, &y, gate, residual);
        let [mut sum, mut normed] = [(); 2].map(|()| poisoned::<T>(device, cols));
        let (affine, scale_shift) = by.views();
        let outs = [normed.view_batches_mut(ROWS[0]), sum.view_batches_mut(ROWS[0])];
        let gate = gate.map(Side::view);
        gated_residual_ada_norm(
            device,
            [x_view(), y.view()],
            gate,
            scale_shift,
            affine,
            chosen(shape),
            outs,
            (params, residual),
            Stream::default(),
        )
        .expect("valid");
        same_bits(&sum.download(), &expected);
        same_bits(&normed.download(), &by.expected(device, &expected, cols, params));
    }
}

fn modulations<T: Element>(device: &Device) {
    let (seed, index) = (seed(), Index::new(device));
    for case in 0..2 * sides().len() {
        let cols = [1, 7, 260, 1536][case % 4];
        let random = &mut random(seed + case as u64);
        let (of_scale, exact) = (sides()[case % sides().len()], case % 3 != 2);
        let of_shift = (
            if of_scale.0 == Shape::Chosen { Shape::Chosen } else { Shape::Batch },
            Dtype::FLOATS[case / 2 % 3],
            None,
        );
        let scale = Side::new(device, random, cols, (of_scale.0, of_scale.1, None));
        let shift = Side::new(device, random, cols, of_shift);
        let x: Vec<T> = values(random, 6 * cols);
        case!("case {case}, {cols} columns, {of_scale:?}, {of_shift:?}, exact {exact}");
        let (x_rows, mut y) = (rows(device, &x, cols, case % 5 == 4), poisoned::<T>(device, cols));
        let (input, out) = (x_rows.view_batches(ROWS[0]), y.view_batches_mut(ROWS[0]));
        let index = index.view(of_scale.0, case % 2 == 0);
        modulate(
            device,
            input,
            scale.value.view(),
            Some(shift.value.view()),
            index,
            out,
            exact,
            Stream::default(),
        )
        .expect("valid");
        let each = exact && [scale.dtype(), shift.dtype()].iter().all(|dtype| *dtype == T::DTYPE);
        let step = |value: f32| if each { T::from_f32(value).to_f32() } else { value };
        let one = |at: usize| {
            let product = step(x[at].to_f32() * step(1.0 + scale.value.whole[at]));
            T::from_f32(product + shift.value.whole[at])
        };
        same_bits(&y.download(), &(0..x.len()).map(one).collect::<Vec<_>>());
    }
}

fn layer_norms<T: Element>(device: &Device) {
    let seed = seed();
    for (case, cols) in [7, 260, 640, 1536, 25_000].into_iter().enumerate() {
        let other = if T::DTYPE == Dtype::Bf16 { Dtype::F16 } else { Dtype::Bf16 };
        for dtypes in [[other, other], [other, Dtype::F32], [T::DTYPE, other]] {
            let random = &mut random(seed + case as u64);
            let parameters = dtypes.map(|dtype| Operand::vector(device, random, cols, dtype));
            let converted =
                [0, 1].map(|i| Operand::converted::<T>(device, &parameters[i].whole, &[cols as i64], false));
            let x: Vec<T> = values(random, 6 * cols);
            let x = rows(device, &x, cols, case % 2 == 1);
            case!("{cols} columns, {dtypes:?}");
            let run = |operands: &[Operand; 2]| {
                let mut y = poisoned::<T>(device, cols);
                let [weight, bias] = [0, 1].map(|i| Some(operands[i].view()));
                layer_norm(device, x.view(), Affine { weight, bias }, y.view_mut(), 1e-5, Stream::default())
                    .expect("valid");
                y.download()
            };
            same_bits(&run(&parameters), &run(&converted));
        }
    }
}

/// Tests an index and chosen rows of wrong shapes and dtypes.
fn bad_index(device: &Device) {
    let memory = device.upload(&[1.0_f32; 256]).unwrap();
    let (index, singles) = (device.upload(&[0_i64; 64]).unwrap(), device.upload(&[0.0_f32; 64]).unwrap());
    let x = memory.view(&[2, 3, 8]).unwrap();
    let mut out = device.alloc::<f32>(48).unwrap();
    let mut says = |scale: &[i64], index: View, text: &str| {
        let (scale, y) = (memory.view(scale).unwrap(), out.view_mut(&[2, 3, 8]).unwrap());
        let result = modulate(device, x, scale, None, Some(index), y, true, Stream::default());
        let error = result.expect_err(text).to_string();
        assert!(error.contains(text), "the error is: {error}\nexpected in it: {text}");
    };
    says(&[4, 8], index.view(&[6]).unwrap(), "index has shape [6], expected [2, 3]");
    says(&[4, 8], singles.view(&[2, 3]).unwrap(), "index is f32, expected i64 or i32");
    let apart = index.view_strided(0, &[2, 3], &[8, 1]).unwrap();
    says(&[4, 8], apart, "index of shape [2, 3] has strides [8, 1]: it must be contiguous");
    let right = index.view(&[2, 3]).unwrap();
    says(&[4, 1], right, "scale has shape [4, 1], expected [4, 8], because there is an index");
    says(&[8], right, "scale has shape [8], expected [8, 8], because there is an index");
    says(&[0, 8], right, "scale has shape [0, 8], expected [1, 8], because there is an index");
    assert!(out.download().unwrap().iter().all(|y| y.is_nan()), "something was written");
}
