//! A test case of `ada_norm`, compared with f64.
use oxiwarp::{AdaNorm, Affine, Device, Element, Norm, Rounding, ScaleShift, Stream, ada_norm};
use oxiwarp_tests::approx::{Approx, close, normed};
use oxiwarp_tests::operand::Norming;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use super::modulations::ModulationCase;

const LAYER: AdaNorm =
    AdaNorm { norm: Norm::Layer, eps: 1e-6, exact: true, rounding: Rounding::BeforeWeight };
const RMS: AdaNorm = AdaNorm { norm: Norm::Rms, ..LAYER };
const FUSED_RMS: AdaNorm = AdaNorm { rounding: Rounding::Once, ..RMS };
/// All norms, in exact and in fast mode.
pub const PARAMS: [AdaNorm; 6] = [
    LAYER,
    RMS,
    FUSED_RMS,
    AdaNorm { exact: false, ..LAYER },
    AdaNorm { exact: false, ..RMS },
    AdaNorm { exact: false, ..FUSED_RMS },
];

/// Returns whether a norm in exact mode is rounded before the weight and before the bias.
pub fn rounds_in_norm(params: AdaNorm) -> bool {
    params.exact && params.norm == Norm::Rms && params.rounding == Rounding::BeforeWeight
}

/// Runs the op with newly allocated memory and returns its result.
pub fn run<T: Element>(
    device: &Device,
    x: &[T],
    (affine, by): (Affine, ScaleShift),
    [batch, tokens, cols]: [i64; 3],
    [layout_x, layout_y]: [Layout; 2],
    params: AdaNorm,
) -> Vec<T> {
    let x = Matrix::upload(device, x, [batch * tokens, cols], layout_x);
    let mut y = Matrix::<T>::poisoned(device, [batch * tokens, cols], layout_y);
    let (x, out) = (x.view_batches(batch), y.view_batches_mut(batch));
    ada_norm(device, x, by, affine, None, out, params, Stream::default()).expect("valid arguments");
    y.download()
}

/// Computes the formula in f64, with error bounds. In exact mode, the bounds include one rounding for each
/// torch operator that the op replaces.
fn reference<T: Element>(x: &[T], by: &Norming<T>, cols: usize, params: AdaNorm) -> Vec<Approx> {
    let round_each = params.exact && !by.is_f32();
    let round = |y: Approx, wanted: bool| if wanted { y.rounded(T::DTYPE) } else { y };
    // In torch, LayerNorm with weight and bias is one operator, which rounds once, and so is
    // `torch.nn.RMSNorm`. In other modules, RMSNorm with weight and bias is three operators, and each rounds
    // its result: the norm, the product with the weight, and the sum with the bias.
    let (step, in_norm) = (round_each, round_each && rounds_in_norm(params));
    let one = |(at, n): (usize, Approx)| {
        let mut y = round(n, in_norm);
        if let Some(weight) = &by.weight {
            y = round(y.times(Approx::exact(weight.at(at % cols).into())), in_norm);
        }
        if let Some(bias) = &by.bias {
            y = round(y.plus(Approx::exact(bias.at(at % cols).into())), in_norm);
        }
        let scale = Approx::exact(1.0).plus(Approx::exact(by.scale.at(at).into()));
        y = round(round(y, step).times(round(scale, step)), step);
        if let Some(shift) = &by.shift {
            y = round(y.plus(Approx::exact(shift.at(at).into())), step);
        }
        y.rounded(T::DTYPE)
    };
    normed(&wide(x), cols, params.norm, params.eps).into_iter().enumerate().map(one).collect()
}

/// Checks one shape and layout, and returns the result.
pub fn check<T: Element>(
    device: &Device,
    seed: u64,
    shape: [i64; 3],
    layouts: [Layout; 2],
    operands: ModulationCase,
    params: AdaNorm,
) -> Vec<T> {
    let (random, cols) = (&mut random(seed), shape[2] as usize);
    let x: Vec<T> = values(random, (shape[0] * shape[1]) as usize * cols);
    let by = operands.make(device, random, shape, layouts[0].offset);
    let y = run(device, &x, by.views(), shape, layouts, params);
    close(&y, &reference(&x, &by, cols, params), cols);
    y
}
