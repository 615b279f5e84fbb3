//! A test case of `layer_norm`, compared with f64.
use oxiwarp::{Affine, Device, Element, Norm, Stream, layer_norm};
use oxiwarp_tests::approx::{Approx, close, normed};
use oxiwarp_tests::operand::Operand;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

pub const EPS: f32 = 1e-5;

/// The tested combinations of weight and bias. Each of the two is absent (`None`), in the dtype of the rows
/// (`false`), or in f32 (`true`).
pub const PARAMETERS: [[Option<bool>; 2]; 6] = [
    [None, None],
    [Some(false), Some(false)],
    [Some(true), Some(true)],
    [Some(false), None],
    [None, Some(true)],
    [Some(true), Some(false)],
];

/// Runs the op with newly allocated memory and returns its result.
pub fn run<T: Element>(
    device: &Device,
    x: &[T],
    [weight, bias]: [Option<&Operand<T>>; 2],
    shape: [i64; 2],
    [layout_x, layout_y]: [Layout; 2],
) -> Vec<T> {
    let x = Matrix::upload(device, x, shape, layout_x);
    let mut y = Matrix::<T>::poisoned(device, shape, layout_y);
    let affine = Affine { weight: weight.map(Operand::view), bias: bias.map(Operand::view) };
    layer_norm(device, x.view(), affine, y.view_mut(), EPS, Stream::default()).expect("valid arguments");
    y.download()
}

/// Checks one shape and layout with the combination `parameters` of weight and bias. The values of the rows
/// are around `mean`. Returns the result of the op.
pub fn check<T: Element>(
    device: &Device,
    seed: u64,
    shape: [i64; 2],
    layouts: [Layout; 2],
    parameters: [Option<bool>; 2],
    mean: f32,
) -> Vec<T> {
    let (random, cols) = (&mut random(seed), shape[1] as usize);
    let x: Vec<f32> = values(random, shape[0] as usize * cols);
    let x: Vec<T> = x.into_iter().map(|x| T::from_f32(x + mean)).collect();
    let offset = layouts[0].offset;
    let [weight, bias] = parameters
        .map(|single| single.map(|single| Operand::vector(device, random, shape[1], single, offset)));
    let y = run(device, &x, [weight.as_ref(), bias.as_ref()], shape, layouts);
    let expected = normed(&wide(&x), cols, Norm::Layer, EPS).into_iter().enumerate().map(|(at, mut y)| {
        if let Some(weight) = &weight {
            y = y.times(Approx::exact(weight.at(at % cols).into()));
        }
        if let Some(bias) = &bias {
            y = y.plus(Approx::exact(bias.at(at % cols).into()));
        }
        y.rounded(T::DTYPE)
    });
    close(&y, &expected.collect::<Vec<_>>(), cols);
    y
}
