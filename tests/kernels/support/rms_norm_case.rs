//! Calls of `rms_norm`, and its formula in f64.
use oxiwarp::{Device, Element, RmsNorm, Stream, rms_norm};
use oxiwarp_tests::tensor::{Layout, Matrix};

/// Returns the allowed error in ulp of the element type, for f32 arithmetic with one rounding at the end.
///
/// For a 16-bit type, the bound is half an ulp for the rounding of the result, plus a little for the f32
/// arithmetic. For f32, `rsqrt.approx` has a relative error of 2^-22.9, which is up to 1.1 ulp of the result
/// of `rsqrt`. In ulp of a product with this result, the same relative error can be twice as large, 2.2 ulp.
/// The argument of `rsqrt` and three products add half an ulp each. The rest of the bound is for the error of
/// the sum of squares.
pub fn bound<T: Element>() -> f64 {
    if size_of::<T>() == 4 { 6.0 } else { 0.51 }
}

/// Computes the formula in f64.
pub fn reference(x: &[f64], weight: Option<&[f64]>, cols: usize, params: RmsNorm) -> Vec<f64> {
    let row = |row: &[f64]| {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / cols as f64;
        let inv_rms = 1.0 / (mean + f64::from(params.eps)).sqrt();
        let scale = |c: usize| weight.map_or(1.0, |w| f64::from(params.weight_offset) + w[c]);
        row.iter().enumerate().map(|(c, x)| x * inv_rms * scale(c)).collect::<Vec<_>>()
    };
    x.chunks(cols).flat_map(row).collect()
}

/// A weight in the element type or in f32.
pub enum AnyWeight<T> {
    Same(Matrix<T>),
    F32(Matrix<f32>),
}

impl<T: Element> AnyWeight<T> {
    pub fn view(&self) -> oxiwarp::View<'_> {
        let (Self::Same(Matrix { shape, .. }) | Self::F32(Matrix { shape, .. })) = self;
        let shape = &shape[1..];
        match self {
            Self::Same(weight) => weight.buffer.view_strided(weight.layout.offset, shape, &[1]),
            Self::F32(weight) => weight.buffer.view_strided(weight.layout.offset, shape, &[1]),
        }
        .expect("a vector")
    }
}

/// Runs the op with newly allocated memory and returns its result.
pub fn run<T: Element>(
    device: &Device,
    x: &[T],
    weight: Option<&AnyWeight<T>>,
    shape: [i64; 2],
    [layout_x, layout_y]: [Layout; 2],
    params: RmsNorm,
) -> Vec<T> {
    let x = Matrix::upload(device, x, shape, layout_x);
    let mut y = Matrix::<T>::poisoned(device, shape, layout_y);
    let weight = weight.map(AnyWeight::view);
    rms_norm(device, x.view(), weight, y.view_mut(), params, Stream::default()).expect("valid arguments");
    y.download()
}
