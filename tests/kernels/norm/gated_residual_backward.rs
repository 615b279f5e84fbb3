//! Tests `gated_residual_backward`: the bits of `dy`, and `dgate` against f64.
use half::{bf16, f16};
use oxiwarp::{
    Buffer, Device, Dtype, Element, GateGradient, Stream, View, ViewMut, gated_residual_backward,
    gated_residual_backward_workspace,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, ulp};
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("gated_residual_backward::f32_table", table::<f32>),
    ("gated_residual_backward::f16_table", table::<f16>),
    ("gated_residual_backward::bf16_table", table::<bf16>),
    ("gated_residual_backward::f32_layouts", layouts::<f32>),
    ("gated_residual_backward::bf16_layouts", layouts::<bf16>),
    ("gated_residual_backward::more_rows_than_blocks", persistent),
    ("gated_residual_backward::runs_of_rows", runs),
    ("gated_residual_backward::gates_of_heads", heads),
    ("gated_residual_backward::rows_do_not_depend_on_each_other", batch_invariance),
    ("gated_residual_backward::sums_are_the_same_each_time", deterministic),
    ("gated_residual_backward::a_nan_stays_in_its_row_and_columns", not_finite),
    ("gated_residual_backward::bad_operands", bad_operands),
    ("gated_residual_backward::bad_outputs", bad_outputs),
];

/// Which elements of `y` share a value of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// The gate has the shape `[columns]`.
    Vector,
    /// The gate has the shape `[groups, columns]`. Each group of rows shares one row of the gate.
    Groups(i64),
    /// The gate has the shape of `y`.
    Tokens,
    /// The gate has one column.
    Rows,
}

impl Gate {
    /// Returns the shape that the gate has as a matrix. `[rows, cols]` is the shape of `y`.
    fn matrix(self, [rows, cols]: [i64; 2]) -> [i64; 2] {
        match self {
            Self::Vector => [1, cols],
            Self::Groups(groups) => [groups, cols],
            Self::Tokens => [rows, cols],
            Self::Rows => [rows, 1],
        }
    }

    /// Returns the index of the gate's element by which element `at` of `y` is multiplied.
    fn index(self, [rows, cols]: [i64; 2], at: usize) -> usize {
        let (row, column) = (at as i64 / cols, at as i64 % cols);
        (match self {
            Self::Vector => column,
            Self::Groups(groups) => row / (rows / groups) * cols + column,
            Self::Tokens => at as i64,
            Self::Rows => row,
        }) as usize
    }
}

/// One call. Its operands are values on the host.
#[derive(Clone)]
struct GradientCase<T> {
    shape: [i64; 2],
    form: Gate,
    /// The layouts of `dsum`, of `y`, of `dy` and of the gate. The gate's layout is ignored if the gate is a
    /// vector.
    layouts: [Layout; 4],
    dsum: Vec<T>,
    y: Vec<T>,
    /// The gate in the dtype of the rows (`Ok`) or in f32 (`Err`).
    gate: Result<Vec<T>, Vec<f32>>,
    /// Whether the gradient of the gate is requested.
    wanted: bool,
}

impl<T: Element> GradientCase<T> {
    fn new(seed: u64, shape: [i64; 2], form: Gate, single: bool) -> Self {
        let (random, len) = (&mut random(seed), (shape[0] * shape[1]) as usize);
        let [dsum, y] = [(); 2].map(|()| values(random, len));
        let [rows, cols] = form.matrix(shape);
        let len = (rows * cols) as usize;
        let gate = if single { Err(values(random, len)) } else { Ok(values(random, len)) };
        let [dense, of_gate] = [shape[1], cols].map(Layout::dense);
        Self { shape, form, layouts: [dense, dense, dense, of_gate], dsum, y, gate, wanted: true }
    }

    /// Returns `dy`, and the gradient of the gate, which is empty if it is not requested.
    fn run(&self, device: &Device) -> (Vec<T>, Vec<f64>) {
        match &self.gate {
            Ok(gate) => self.run_with(device, gate),
            Err(gate) => self.run_with(device, gate),
        }
    }

    fn run_with<G: Element>(&self, device: &Device, gate: &[G]) -> (Vec<T>, Vec<f64>) {
        let [of_dsum, of_y, of_dy, of_gate] = self.layouts;
        let dsum = Matrix::upload(device, &self.dsum, self.shape, of_dsum);
        let y = Matrix::upload(device, &self.y, self.shape, of_y);
        let mut dy = Matrix::<T>::poisoned(device, self.shape, of_dy);
        let matrix = self.form.matrix(self.shape);
        let gate = Matrix::upload(device, gate, matrix, of_gate);
        let mut dgate = Matrix::<G>::poisoned(device, matrix, Layout::dense(matrix[1]));
        let cols = [self.shape[1]];
        let is_vector = self.form == Gate::Vector;
        let of_gate = if is_vector {
            gate.buffer.view_strided(of_gate.offset, &cols, &[1]).unwrap()
        } else {
            gate.view()
        };
        let needed = gated_residual_backward_workspace(device, &y.view(), of_gate.shape());
        assert!(needed == 0 || matches!(self.form, Gate::Vector | Gate::Groups(_)), "{needed}");
        let mut workspace = device.alloc::<f32>(needed).unwrap();
        let gradient = if self.wanted {
            let dgate = if is_vector { dgate.buffer.view_mut(&cols).unwrap() } else { dgate.view_mut() };
            let workspace = (needed > 0).then(|| workspace.view_mut(&[needed as i64]).unwrap());
            GateGradient { dgate: Some(dgate), workspace }
        } else {
            GateGradient::default()
        };
        let (out, stream) = (dy.view_mut(), Stream::default());
        gated_residual_backward(device, dsum.view(), y.view(), of_gate, out, gradient, stream)
            .expect("valid");
        (dy.download(), if self.wanted { wide(&dgate.download()) } else { vec![] })
    }

    /// Runs the op. The bits of `dy` must be the expected ones, and `dgate` is compared with a sum in f64.
    #[track_caller]
    fn check(&self, device: &Device) {
        let (dy, dgate) = self.run(device);
        let (dtype, gate) = match &self.gate {
            Ok(gate) => (T::DTYPE, wide(gate)),
            Err(gate) => (Dtype::F32, wide(gate)),
        };
        let gate_of = |at: usize| gate[self.form.index(self.shape, at)] as f32;
        let expected: Vec<T> =
            (0..self.y.len()).map(|at| T::from_f32(gate_of(at) * self.dsum[at].to_f32())).collect();
        same_bits(&dy, &expected);
        let mut right = vec![(0.0, 0.0); gate.len()];
        for (at, (dsum, y)) in self.dsum.iter().zip(&self.y).enumerate() {
            let (product, sum) = (
                f64::from(dsum.to_f32()) * f64::from(y.to_f32()),
                &mut right[self.form.index(self.shape, at)],
            );
            *sum = (sum.0 + product, sum.1 + product.abs());
        }
        assert_eq!(dgate.len(), if self.wanted { gate.len() } else { 0 });
        for (at, (got, (right, size))) in dgate.iter().zip(right).enumerate() {
            let allowed = 16.0 * f64::from(f32::EPSILON) * size + 0.51 * ulp(dtype, right);
            assert!(
                (got - right).abs() <= allowed,
                "dgate[{at}] is {got:e}, expected {right:e} within {allowed:e}"
            );
        }
    }
}

/// Returns the forms of a gate for rows of this shape.
fn forms([rows, cols]: [i64; 2]) -> Vec<Gate> {
    let mut forms = vec![Gate::Vector, Gate::Groups(1)];
    // If `y` has one column, a gate of shape `[rows, 1]` has the shape of `y`.
    forms.extend((rows > 0).then_some(Gate::Tokens));
    forms.extend((rows > 0 && cols > 1).then_some(Gate::Rows));
    forms.extend((2..rows).find(|groups| rows % groups == 0).map(Gate::Groups));
    forms
}

/// Returns whether the gate is f32 instead of `T`. For f32 rows, both gates are the same.
fn singles<T: Element>() -> &'static [bool] {
    if T::DTYPE == Dtype::F32 { &[false] } else { &[false, true] }
}

fn table<T: Element>(device: &Device) {
    let seed = seed();
    for shape in shapes() {
        for form in forms([shape.rows, shape.cols]) {
            for &single in singles::<T>() {
                case!("{} x {} ({}), {form:?}, f32 gate {single}", shape.rows, shape.cols, shape.why);
                let case = GradientCase::<T>::new(seed, [shape.rows, shape.cols], form, single);
                case.check(device);
                if shape.cols <= 300 {
                    GradientCase { wanted: false, ..case }.check(device);
                }
            }
        }
    }
}

fn layouts<T: Element>(device: &Device) {
    let seed = seed();
    for cols in [1, 7, 64, 129, 640, 2056] {
        for form in forms([6, cols]) {
            let of_gate = form.matrix([6, cols])[1];
            let dense = [cols, cols, cols, of_gate].map(Layout::dense);
            for (offset, gap) in [(8, 8), (3, 1), (16, 64)] {
                for which in 0..=4 {
                    let mut layouts = dense;
                    for (at, layout) in layouts.iter_mut().enumerate() {
                        if which == at || which == 4 {
                            *layout = Layout { offset, stride: layout.stride + gap };
                        }
                    }
                    case!("{cols} columns, {layouts:?}, {form:?}");
                    for &single in singles::<T>() {
                        GradientCase { layouts, ..GradientCase::<T>::new(seed, [6, cols], form, single) }
                            .check(device);
                    }
                }
            }
        }
    }
}

/// Tests so many rows that each thread block processes several rows, one after the other, and so many columns
/// that each block processes several ranges of columns.
fn persistent(device: &Device) {
    let seed = seed();
    for (shape, form) in [
        ([40_000, 16], Gate::Vector),
        ([9_001, 260], Gate::Vector),
        ([1_200, 264], Gate::Groups(200)),
        ([3_000, 8], Gate::Groups(1_500)),
    ] {
        case!("{shape:?}, {form:?}");
        GradientCase::<f16>::new(seed, shape, form, true).check(device);
        GradientCase::<f32>::new(seed, shape, form, false).check(device);
    }
}

/// Tests rows whose addresses need two strides: `y` consists of the last tokens of each batch of a larger
/// tensor.
fn runs(device: &Device) {
    let (random, [batches, tokens, cols]) = (&mut random(seed()), [3_i64, 4, 72]);
    let (shape, past) = ([batches, tokens, cols], 5);
    let len = (batches * tokens * cols) as usize;
    let [dsum, gate]: [Vec<bf16>; 2] = [len, len].map(|len| values(random, len));
    let wide_y: Vec<bf16> = values(random, (batches * (tokens + past) * cols) as usize);
    let strides = [(tokens + past) * cols, cols, 1];
    let [y, dsum_memory, gate_memory] = [&wide_y, &dsum, &gate].map(|v| device.upload(v).unwrap());
    for gate_shape in [vec![cols], vec![batches, cols], shape.to_vec(), vec![batches, tokens, 1]] {
        case!("{gate_shape:?}");
        let of_gate: i64 = gate_shape.iter().product();
        let y_view = y.view_strided((past * cols) as usize, &shape, &strides).unwrap();
        let needed = gated_residual_backward_workspace(device, &y_view, &gate_shape);
        let mut dy = device.alloc::<bf16>(len).unwrap();
        let mut dgate = device.alloc::<bf16>(of_gate as usize).unwrap();
        let mut workspace = device.alloc::<f32>(needed).unwrap();
        let gradient = GateGradient {
            dgate: Some(dgate.view_mut(&gate_shape).unwrap()),
            workspace: Some(workspace.view_mut(&[needed as i64]).unwrap()),
        };
        let gate_view = gate_memory.view_strided(0, &gate_shape, &dense_strides(&gate_shape)).unwrap();
        let (dsum_view, out) = (dsum_memory.view(&shape).unwrap(), dy.view_mut(&shape).unwrap());
        gated_residual_backward(device, dsum_view, y_view, gate_view, out, gradient, Stream::default())
            .expect("valid");
        let index = |at: i64| match gate_shape.len() {
            1 => at % cols,
            2 => at / (tokens * cols) * cols + at % cols,
            _ if gate_shape[2] == 1 => at / cols,
            _ => at,
        };
        let expected: Vec<bf16> = (0..len)
            .map(|at| bf16::from_f32(gate[index(at as i64) as usize].to_f32() * dsum[at].to_f32()))
            .collect();
        same_bits(&dy.download().unwrap(), &expected);
        let mut sums = vec![0.0; of_gate as usize];
        for (at, dsum) in dsum.iter().enumerate() {
            let (batch, within) = (at as i64 / (tokens * cols), at as i64 % (tokens * cols));
            let y = wide_y[(batch * (tokens + past) * cols + past * cols + within) as usize];
            sums[index(at as i64) as usize] += f64::from(dsum.to_f32()) * f64::from(y.to_f32());
        }
        for (got, right) in dgate.download().unwrap().iter().zip(sums) {
            let off = (f64::from(got.to_f32()) - right).abs();
            assert!(off <= 0.51 * ulp(Dtype::Bf16, right) + 1e-4, "{got}, expected {right}");
        }
    }
}

fn dense_strides(shape: &[i64]) -> Vec<i64> {
    (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect()
}

/// Tests a gate with one number per head, which the caller broadcasts to the rows with a stride of 0. Its
/// gradient has one number for each row.
fn heads(device: &Device) {
    let (random, shape) = (&mut random(seed()), [2_i64, 5, 3, 24]);
    let len = shape.iter().product::<i64>() as usize;
    let [dsum, y, gate]: [Vec<f32>; 3] = [len, len, 3].map(|len| values(random, len));
    let [dsum_memory, y_memory, numbers] = [&dsum, &y, &gate].map(|v| device.upload(v).unwrap());
    let (mut dy, mut dgate) = (device.alloc::<f32>(len).unwrap(), device.alloc::<f32>(30).unwrap());
    let gate_view = numbers.view_strided(0, &[2, 5, 3, 1], &[0, 0, 1, 1]).unwrap();
    let gradient = GateGradient { dgate: Some(dgate.view_mut(&[2, 5, 3, 1]).unwrap()), workspace: None };
    let [dsum_view, y_view] = [&dsum_memory, &y_memory].map(|memory| memory.view(&shape).unwrap());
    let out = dy.view_mut(&shape).unwrap();
    gated_residual_backward(device, dsum_view, y_view, gate_view, out, gradient, Stream::default())
        .expect("valid");
    let expected: Vec<f32> = (0..len).map(|at| gate[at / 24 % 3] * dsum[at]).collect();
    same_bits(&dy.download().unwrap(), &expected);
    for (row, got) in dgate.download().unwrap().into_iter().enumerate() {
        let right: f64 = (row * 24..row * 24 + 24).map(|at| f64::from(dsum[at]) * f64::from(y[at])).sum();
        assert!((f64::from(got) - right).abs() < 1e-5, "{got}, expected {right}");
    }
}

fn batch_invariance(device: &Device) {
    for cols in [5_i64, 128, 3072] {
        for form in [Gate::Vector, Gate::Tokens, Gate::Rows] {
            let case = GradientCase::<bf16>::new(seed(), [300, cols], form, false);
            let (dy, dgate) = case.run(device);
            for row in [0, 1, 299_usize] {
                let part = |values: &[bf16], cols: i64| {
                    let cols = cols as usize;
                    if values.len() == cols {
                        values.to_vec()
                    } else {
                        values[row * cols..(row + 1) * cols].to_vec()
                    }
                };
                let gate = case.gate.as_ref().unwrap();
                let alone = GradientCase {
                    shape: [1, cols],
                    dsum: part(&case.dsum, cols),
                    y: part(&case.y, cols),
                    gate: Ok(part(gate, form.matrix(case.shape)[1])),
                    ..case.clone()
                };
                let (own, own_gate) = alone.run(device);
                same_bits(&own, &part(&dy, cols));
                if form == Gate::Rows {
                    assert_eq!(own_gate[0], dgate[row]);
                }
            }
        }
    }
}

fn deterministic(device: &Device) {
    for shape in [[3000, 16], [900, 520], [400, 3072]] {
        let case = GradientCase::<bf16>::new(seed(), shape, Gate::Vector, true);
        assert_eq!(case.run(device).1, case.run(device).1, "{shape:?}");
    }
}

fn not_finite(device: &Device) {
    let (rows, cols) = (6, 40_usize);
    for form in [Gate::Vector, Gate::Groups(3), Gate::Tokens, Gate::Rows] {
        let mut case = GradientCase::<f32>::new(seed(), [rows, cols as i64], form, false);
        case.dsum[cols + 3] = f32::NAN;
        let (dy, dgate) = case.run(device);
        assert!(dy.iter().enumerate().all(|(at, dy)| dy.is_nan() == (at == cols + 3)), "dy, {form:?}");
        let hit = form.index(case.shape, cols + 3);
        assert!(dgate.iter().enumerate().all(|(at, dgate)| dgate.is_nan() == (at == hit)), "dgate, {form:?}");
    }
}

fn bad_operands(device: &Device) {
    let (x, half) = (device.upload(&[1.0_f32; 64]).unwrap(), device.upload(&[f16::ONE; 64]).unwrap());
    let mut dy = device.alloc::<f32>(64).unwrap();
    let y = x.view(&[4, 16]).unwrap();
    let mut refuses = |dsum: View, gate: View, text: &str| {
        let (dy, gradient) = (dy.view_mut(&[4, 16]).unwrap(), GateGradient::default());
        let result = gated_residual_backward(device, dsum, y, gate, dy, gradient, Stream::default());
        says(result, &format!("gated_residual_backward: {text}"));
    };
    let gate = x.view(&[16]).unwrap();
    refuses(half.view(&[4, 16]).unwrap(), gate, "dsum is f16, expected f32");
    refuses(x.view(&[2, 16]).unwrap(), gate, "dsum has shape [2, 16], expected [4, 16]");
    refuses(y, half.view(&[16]).unwrap(), "gate is f16, expected f32");
    for shape in [vec![8], vec![3, 16], vec![4, 2], vec![2, 2, 16], vec![3, 1], vec![]] {
        let text = format!("gate has shape {shape:?}, expected [16], [groups, 16] with up to 65535 groups");
        refuses(y, x.view(&shape).unwrap(), &text);
    }
    let strided = x.view_strided(0, &[16], &[2]).unwrap();
    refuses(y, strided, "gate of shape [16] has strides [2]: its last dimension must be contiguous");
    let strided = x.view_strided(0, &[4, 16], &[1, 4]).unwrap();
    refuses(y, strided, "gate of shape [4, 16] has strides [1, 4]: its last dimension must be contiguous");
    refuses(strided, gate, "dsum of shape [4, 16] has strides [1, 4]: its last dimension must be contiguous");
    assert!(dy.download().unwrap().iter().all(|dy| dy.is_nan()), "something was written");
}

/// Makes a writable view of the memory of `view`. The tests pass it to calls that the op rejects.
fn writable<'a>(view: View<'a>) -> ViewMut<'a> {
    // SAFETY: pointer, shape and strides come from a valid view. The op rejects every call that gets the
    // writable view, so it does not write.
    unsafe { ViewMut::from_raw(view.ptr().cast_mut(), view.dtype(), view.shape(), view.strides()) }.unwrap()
}

fn bad_outputs(device: &Device) {
    let x = device.upload(&[1.0_f32; 64]).unwrap();
    let [dy, dgate, floats]: [Buffer<f32>; 3] = [64, 64, 4096].map(|len| device.alloc::<f32>(len).unwrap());
    let (rows, gate) = (x.view(&[4, 16]).unwrap(), x.view(&[16]).unwrap());
    let needed = gated_residual_backward_workspace(device, &rows, &[16]);
    assert!((16..=4096).contains(&needed), "{needed}");
    let refuses = |out: View, dgate: View, workspace: Option<View>, text: &str| {
        let gradient = GateGradient { dgate: Some(writable(dgate)), workspace: workspace.map(writable) };
        let result =
            gated_residual_backward(device, rows, rows, gate, writable(out), gradient, Stream::default());
        says(result, &format!("gated_residual_backward: {text}"));
    };
    let (out, vector) = (dy.view(&[4, 16]).unwrap(), dgate.view(&[16]).unwrap());
    let enough = floats.view(&[4096]).ok();
    refuses(out, vector, None, &format!("workspace has shape [], expected [{needed}] or more"));
    refuses(out, vector, floats.view(&[8]).ok(), "workspace has shape [8], expected [");
    refuses(out, dgate.view(&[1, 16]).unwrap(), enough, "dgate has shape [1, 16], expected [16]");
    let strided = dgate.view_strided(0, &[16], &[2]).unwrap();
    refuses(out, strided, enough, "dgate of shape [16] has strides [2]: it must be contiguous");
    refuses(out, gate, enough, "dgate overlaps dsum");
    refuses(rows, vector, enough, "dy overlaps dsum");
    refuses(out, vector, dgate.view(&[64]).ok(), "workspace overlaps dgate");
    for buffer in [&dy, &dgate, &floats] {
        assert!(buffer.download().unwrap().iter().all(|value| value.is_nan()), "something was written");
    }
}
