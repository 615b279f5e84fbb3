//! A call of `rms_norm_backward` or `layer_norm_backward`, and its reference in f64.
use oxiwarp::{
    Affine, Device, Element, ParameterGradients, RmsNorm, Stream, View, layer_norm_backward,
    norm_backward_workspace, rms_norm_backward,
};
use oxiwarp_tests::compare::ulp;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

pub const EPS: f32 = 1e-6;

/// One call. Its operands are values on the host.
#[derive(Clone)]
pub struct NormBackwardCase<T> {
    pub layer: bool,
    pub shape: [i64; 2],
    /// The layouts of x, of dy and dsum, and of dx.
    pub layouts: [Layout; 3],
    pub x: Vec<T>,
    pub dy: Vec<T>,
    pub dsum: Option<Vec<T>>,
    /// The weights of all groups of rows, one vector per group. The variant `Ok` has the dtype of the rows,
    /// and `Err` has f32.
    pub weight: Option<Result<Vec<T>, Vec<f32>>>,
    pub groups: usize,
    pub offset: f32,
    /// The dtype of the gradients of weight and bias. `Some(true)` means f32, and `Some(false)` means the
    /// dtype of the rows. `None` means that these gradients are not requested.
    pub wanted: Option<bool>,
    /// Whether the error bound includes the effect of outliers among the first 16 elements of a row. The
    /// kernel first subtracts the mean of these elements, which may be far from the row's mean.
    pub sampled: bool,
}

/// The gradient `dx`, and the gradients of the parameters in f64.
type Results<T> = (Vec<T>, Vec<Vec<f64>>);

impl<T: Element> NormBackwardCase<T> {
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
            sampled: false,
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
            let affine = Affine { weight, bias: None };
            layer_norm_backward(device, dy, x, affine, dsum, dx, gradients, EPS, stream)
        } else {
            let params = RmsNorm { eps: EPS, weight_offset: self.offset, ..RmsNorm::default() };
            rms_norm_backward(device, dy, x, weight, dsum, dx, gradients, params, stream)
        }
        .expect("valid arguments");
    }

    /// Runs the op and compares its results with f64.
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
            let line = line([self.layer, self.sampled], &x[at.clone()], &dy[at.clone()], &weight);
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

/// The gradient `dx` of one element of a row, and the contributions of this element to `dweight` and `dbias`,
/// in f64. Each of the three is a pair of a value and an error bound for f32 arithmetic.
struct Element64 {
    dx: (f64, f64),
    dweight: (f64, f64),
    dbias: (f64, f64),
}

/// Computes the gradients of a row in f64, with error bounds. The allowed error of a sum is 16 * 2^-23,
/// relative to the sum of the magnitudes of its terms. The same relative error is allowed for a product.
fn line([layer, sampled]: [bool; 2], x: &[f64], dy: &[f64], weight: &[f64]) -> Vec<Element64> {
    const UNIT: f64 = 16.0 * f32::EPSILON as f64;
    let n = x.len() as f64;
    let mean_of = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / n;
    let mean = if layer { mean_of(&mut x.iter().copied()) } else { 0.0 };
    let size = if layer { mean_of(&mut x.iter().map(|x| x.abs())) } else { 0.0 };
    let first = if sampled { (x[..16].iter().sum::<f64>() / 16.0 - mean).abs() } else { 0.0 };
    let r = 1.0 / (mean_of(&mut x.iter().map(|x| (x - mean).powi(2))) + f64::from(EPS)).sqrt();
    // The kernel first subtracts the mean of the first 16 elements. `first` is the distance of this mean from
    // the row's mean. `first` adds to the error of the row's mean, and its square adds to the error of the
    // variance.
    let (size, of_r) = (size + first, 1.0 + (first * r).powi(2));
    let xhat: Vec<(f64, f64)> =
        x.iter().map(|x| ((x - mean) * r, UNIT * r * ((x - mean).abs() * of_r + size))).collect();
    let g: Vec<f64> = dy.iter().zip(weight).map(|(dy, w)| dy * w).collect();
    let offset = if layer { mean_of(&mut g.iter().copied()) } else { 0.0 };
    let offset_size = if layer { mean_of(&mut g.iter().map(|g| g.abs())) } else { 0.0 };
    let pull = mean_of(&mut g.iter().zip(&xhat).map(|(g, xhat)| g * xhat.0));
    let pull_off =
        mean_of(&mut g.iter().zip(&xhat).map(|(g, xhat)| g.abs() * (UNIT * xhat.0.abs() + xhat.1)));
    let element = |i: usize| {
        let (xhat, off) = xhat[i];
        let dx_off = UNIT * of_r * (g[i].abs() + offset_size + (xhat * pull).abs())
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
