//! `rms_norm_backward` and `layer_norm_backward` against f64.
use half::{bf16, f16};
use oxiwarp::{
    Device, Element, ParameterGradients, RmsNorm, Stream, View, layer_norm_backward, norm_backward_workspace,
    rms_norm_backward,
};
use oxiwarp_tests::compare::{same_bits, ulp};
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, seed, values, wide};

use crate::Test;

pub const TESTS: &[Test] = &[
    ("norm_backward::f32_against_f64", against_f64::<f32>),
    ("norm_backward::f16_against_f64", against_f64::<f16>),
    ("norm_backward::bf16_against_f64", against_f64::<bf16>),
    ("norm_backward::layouts", layouts),
    ("norm_backward::groups_of_rows", groups),
    ("norm_backward::more_rows_than_blocks", persistent),
    ("norm_backward::rows_do_not_depend_on_each_other", batch_invariance),
    ("norm_backward::sums_are_the_same_each_time", deterministic),
    ("norm_backward::a_nan_stays_in_its_row_and_columns", not_finite),
];

const EPS: f32 = 1e-6;

/// One call, its operands as values on the host.
#[derive(Clone)]
pub struct Case<T> {
    pub layer: bool,
    pub shape: [i64; 2],
    /// Of x, dy and dsum, dx.
    pub layouts: [Layout; 3],
    pub x: Vec<T>,
    pub dy: Vec<T>,
    pub dsum: Option<Vec<T>>,
    /// For each group of rows; in f32 where the second is there.
    pub weight: Option<Result<Vec<T>, Vec<f32>>>,
    pub groups: usize,
    pub offset: f32,
    /// Gradients of the parameters, in f32?
    pub wanted: Option<bool>,
}

/// dx, and the gradients of the parameters as f64.
type Results<T> = (Vec<T>, Vec<Vec<f64>>);

impl<T: Element> Case<T> {
    pub fn new(seed: u64, layer: bool, shape: [i64; 2]) -> Self {
        let (random, len) = (&mut random(seed), (shape[0] * shape[1]) as usize);
        Self {
            layer,
            shape,
            layouts: [Layout::dense(shape[1]); 3],
            x: values(random, len),
            dy: values(random, len),
            dsum: None,
            weight: Some(Ok(values(random, shape[1] as usize))),
            groups: 1,
            offset: 0.0,
            wanted: Some(false),
        }
    }

    pub fn run(&self, device: &Device) -> Results<T> {
        if self.wanted == Some(true) { self.run_with::<f32>(device) } else { self.run_with::<T>(device) }
    }

    fn run_with<G: Element>(&self, device: &Device) -> Results<T> {
        let [of_x, of_dy, of_dx] = self.layouts;
        let (x, dy) = (
            Matrix::upload(device, &self.x, self.shape, of_x),
            Matrix::upload(device, &self.dy, self.shape, of_dy),
        );
        let dsum = self.dsum.as_ref().map(|dsum| Matrix::upload(device, dsum, self.shape, of_dy));
        let mut dx = Matrix::<T>::poisoned(device, self.shape, of_dx);
        let (groups, cols) = (self.groups as i64, self.shape[1]);
        let shape = if groups == 1 { vec![cols] } else { vec![groups, cols] };
        let (same, single) = match &self.weight {
            Some(Ok(weight)) => (Some(device.upload(weight).unwrap()), None),
            Some(Err(weight)) => (None, Some(device.upload(weight).unwrap())),
            None => (None, None),
        };
        let same = same.as_ref().map(|weight| weight.view(&shape).unwrap());
        let weight = same.or(single.as_ref().map(|weight| weight.view(&shape).unwrap()));
        let len = (groups * cols) as usize;
        let (mut dweight, mut dbias) = (device.alloc::<G>(len).unwrap(), device.alloc::<G>(len).unwrap());
        let floats = norm_backward_workspace(device, &x.view(), &shape, 2);
        let mut workspace = device.alloc::<f32>(floats.max(1)).unwrap();
        let gradients = match self.wanted {
            None => ParameterGradients::default(),
            Some(_) => ParameterGradients {
                dweight: Some(dweight.view_mut(&shape).unwrap()),
                dbias: self.layer.then(|| dbias.view_mut(&shape).unwrap()),
                workspace: Some(workspace.view_mut(&[floats.max(1) as i64]).unwrap()),
            },
        };
        self.call(device, [dy.view(), x.view()], weight, dsum.as_ref().map(Matrix::view), &mut dx, gradients);
        let sums = match self.wanted {
            None => vec![],
            Some(_) if self.layer => vec![dweight, dbias],
            Some(_) => vec![dweight],
        };
        (dx.download(), sums.iter().map(|sum| wide(&sum.download().unwrap())).collect())
    }

    fn call(
        &self,
        device: &Device,
        [dy, x]: [View; 2],
        weight: Option<View>,
        dsum: Option<View>,
        dx: &mut Matrix<T>,
        gradients: ParameterGradients,
    ) {
        let (dx, stream) = (dx.view_mut(), Stream::default());
        if self.layer {
            layer_norm_backward(device, dy, x, weight, dsum, dx, gradients, EPS, stream)
        } else {
            let params = RmsNorm { eps: EPS, weight_offset: self.offset, ..RmsNorm::default() };
            rms_norm_backward(device, dy, x, weight, dsum, dx, gradients, params, stream)
        }
        .expect("valid arguments");
    }

    /// Runs and compares with f64.
    #[track_caller]
    pub fn check(&self, device: &Device) {
        let (cols, rows) = (self.shape[1] as usize, self.shape[0] as usize);
        let weight = match &self.weight {
            Some(Ok(weight)) => wide(weight),
            Some(Err(weight)) => wide(weight),
            None => vec![1.0; self.groups * cols],
        };
        let offset = if self.weight.is_some() { f64::from(self.offset) } else { 0.0 };
        let (x, dy) = (wide(&self.x), wide(&self.dy));
        let (dx, sums) = self.run(device);
        let mut right = vec![vec![(0.0, 0.0); self.groups * cols]; 2];
        for row in 0..rows {
            let at = row * cols..(row + 1) * cols;
            let group = row / (rows / self.groups) * cols;
            let weight: Vec<f64> = weight[group..group + cols].iter().map(|w| offset + w).collect();
            let line = line(self.layer, &x[at.clone()], &dy[at.clone()], &weight);
            for (column, line) in line.into_iter().enumerate() {
                let past = self.dsum.as_ref().map_or(0.0, |dsum| f64::from(dsum[at.start + column].to_f32()));
                let expected = line.dx.0 + past;
                let rounding =
                    if size_of::<T>() == 4 { past.abs() * 1e-7 } else { 0.5 * ulp(T::DTYPE, expected) };
                close(
                    f64::from(dx[at.start + column].to_f32()),
                    expected,
                    line.dx.1 + rounding,
                    "dx",
                    row,
                    column,
                );
                for (sum, term) in right.iter_mut().zip([line.dweight, line.dbias]) {
                    sum[group + column].0 += term.0;
                    sum[group + column].1 += term.1;
                }
            }
        }
        let dtype = if self.wanted == Some(true) { oxiwarp::Dtype::F32 } else { T::DTYPE };
        for (name, (sum, right)) in ["dweight", "dbias"].into_iter().zip(sums.iter().zip(&right)) {
            for (column, (sum, (right, allowed))) in sum.iter().zip(right).enumerate() {
                close(*sum, *right, allowed + 0.51 * ulp(dtype, *right), name, 0, column);
            }
        }
    }
}

/// An element's gradients, each with how far f32 arithmetic may be from it.
struct Element64 {
    dx: (f64, f64),
    dweight: (f64, f64),
    dbias: (f64, f64),
}

/// A row in f64. In units of 2^-23, a sum may be off by 16 of what its terms are in size, and so may each product.
fn line(layer: bool, x: &[f64], dy: &[f64], weight: &[f64]) -> Vec<Element64> {
    const UNIT: f64 = 16.0 * f32::EPSILON as f64;
    let n = x.len() as f64;
    let mean_of = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / n;
    let mean = if layer { mean_of(&mut x.iter().copied()) } else { 0.0 };
    let size = if layer { mean_of(&mut x.iter().map(|x| x.abs())) } else { 0.0 };
    let r = 1.0 / (mean_of(&mut x.iter().map(|x| (x - mean).powi(2))) + f64::from(EPS)).sqrt();
    let xhat: Vec<(f64, f64)> =
        x.iter().map(|x| ((x - mean) * r, UNIT * r * ((x - mean).abs() + size))).collect();
    let g: Vec<f64> = dy.iter().zip(weight).map(|(dy, w)| dy * w).collect();
    let offset = if layer { mean_of(&mut g.iter().copied()) } else { 0.0 };
    let offset_size = if layer { mean_of(&mut g.iter().map(|g| g.abs())) } else { 0.0 };
    let pull = mean_of(&mut g.iter().zip(&xhat).map(|(g, xhat)| g * xhat.0));
    let pull_off =
        mean_of(&mut g.iter().zip(&xhat).map(|(g, xhat)| g.abs() * (UNIT * xhat.0.abs() + xhat.1)));
    let element = |i: usize| {
        let (xhat, off) = xhat[i];
        let dx_off = UNIT * (g[i].abs() + offset_size + (xhat * pull).abs())
            + off * pull.abs()
            + xhat.abs() * pull_off;
        Element64 {
            dx: (r * (g[i] - offset - xhat * pull), r * dx_off + 1e-37),
            dweight: (dy[i] * xhat, dy[i].abs() * (off + UNIT * xhat.abs())),
            dbias: (dy[i], UNIT * dy[i].abs()),
        }
    };
    (0..x.len()).map(element).collect()
}

#[track_caller]
fn close(got: f64, right: f64, allowed: f64, what: &str, row: usize, column: usize) {
    let off = (got - right).abs();
    assert!(off <= allowed, "{what}[{row}, {column}] is {got:e}, expected {right:e} within {allowed:e}");
}

fn against_f64<T: Element>(device: &Device) {
    let seed = seed();
    for shape in shapes() {
        eprintln!("{} x {} ({}), OXIWARP_SEED={seed}", shape.rows, shape.cols, shape.why);
        for layer in [false, true] {
            let case = Case::<T>::new(seed, layer, [shape.rows, shape.cols]);
            case.check(device);
            if shape.cols > 20_000 {
                continue;
            }
            let single = values(&mut random(seed + 1), shape.cols as usize);
            let dsum = Some(values(&mut random(seed + 2), case.x.len()));
            let offset = if layer { 0.0 } else { 1.0 };
            Case { weight: Some(Err(single)), offset, wanted: Some(true), ..case.clone() }.check(device);
            Case { weight: None, dsum, wanted: None, ..case }.check(device);
        }
    }
}

fn layouts(device: &Device) {
    let seed = seed();
    for cols in [7, 129, 640, 2048, 4104] {
        let dense = Layout::dense(cols);
        for odd in [Layout { offset: 8, stride: cols + 8 }, Layout { offset: 3, stride: cols + 1 }] {
            for layouts in [[dense, odd, dense], [odd, dense, dense], [dense, dense, odd], [odd; 3]] {
                eprintln!("{cols} columns, {layouts:?}, OXIWARP_SEED={seed}");
                for layer in [false, true] {
                    let case = Case::<bf16>::new(seed, layer, [6, cols]);
                    let dsum = Some(values(&mut random(seed), case.x.len()));
                    Case { layouts, dsum, ..case }.check(device);
                    Case { layouts, ..Case::<f32>::new(seed, layer, [6, cols]) }.check(device);
                }
            }
        }
    }
}

/// Blocks that take several rows after another: in registers, streamed, and few to a group.
fn persistent(device: &Device) {
    let seed = seed();
    for layer in [false, true] {
        Case::<f32>::new(seed, layer, [1_501, 1024]).check(device);
        Case::<f32>::new(seed, layer, [140, 8_208]).check(device);
        let odd = Case::<f32>::new(seed, layer, [1_100, 513]);
        Case { layouts: [Layout { offset: 1, stride: 515 }; 3], ..odd }.check(device);
        let (groups, cols) = (200, 2048);
        let weight = values(&mut random(seed), groups * cols);
        Case { weight: Some(Ok(weight)), groups, ..Case::<f16>::new(seed, layer, [1_200, cols as i64]) }
            .check(device);
    }
}

/// A weight for each group of rows.
fn groups(device: &Device) {
    let seed = seed();
    for (groups, rows, cols) in [(2, 3, 64), (5, 1, 129), (3, 700, 16), (4, 9, 3072)] {
        for layer in [false, true] {
            let case = Case::<f16>::new(seed, layer, [groups * rows, cols]);
            let weight = values(&mut random(seed), (groups * cols) as usize);
            let case =
                Case { weight: Some(Err(weight)), groups: groups as usize, wanted: Some(true), ..case };
            case.check(device);
        }
    }
}

fn batch_invariance(device: &Device) {
    for cols in [5_i64, 128, 1536, 3072, 40_000] {
        let rows = if cols > 10_000 { 7 } else { 300 };
        for layer in [false, true] {
            let case = Case::<bf16>::new(seed(), layer, [rows, cols]);
            let (all, _) = case.run(device);
            for row in [0, 1, rows - 1] {
                let at = (row * cols) as usize..((row + 1) * cols) as usize;
                let (x, dy) = (case.x[at.clone()].to_vec(), case.dy[at.clone()].to_vec());
                for wanted in [None, Some(false)] {
                    let alone =
                        Case { shape: [1, cols], x: x.clone(), dy: dy.clone(), wanted, ..case.clone() };
                    same_bits(&alone.run(device).0, &all[at.clone()]);
                }
            }
        }
    }
}

fn deterministic(device: &Device) {
    for shape in [[3000, 16], [900, 520], [400, 3072], [40, 40_000]] {
        for layer in [false, true] {
            let case = Case { wanted: Some(true), ..Case::<bf16>::new(seed(), layer, shape) };
            let (first, again) = (case.run(device), case.run(device));
            same_bits(&first.0, &again.0);
            assert_eq!(first.1, again.1, "{shape:?}, layer {layer}");
        }
    }
}

fn not_finite(device: &Device) {
    let (rows, cols) = (6, 40_usize);
    for layer in [false, true] {
        let mut case = Case::<f32>::new(seed(), layer, [rows, cols as i64]);
        case.dy[cols + 3] = f32::NAN;
        let (dx, sums) = case.run(device);
        assert!(dx[cols..2 * cols].iter().all(|dx| dx.is_nan()), "a NaN reaches its whole row");
        assert!(dx[..cols].iter().chain(&dx[2 * cols..]).all(|dx| dx.is_finite()), "and no other");
        for sum in sums {
            assert!(sum.iter().enumerate().all(|(column, sum)| sum.is_nan() == (column == 3)));
        }
    }
}
