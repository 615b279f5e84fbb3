//! A test case of `add_rms_norm`, which adds two inputs and normalizes the rounded sum. The sum must have the
//! expected bits. The norm is compared with a computation in f64.
use oxiwarp::{Device, Element, RmsNorm, Rounding, Stream, View, ViewMut, add_rms_norm};
use oxiwarp_tests::compare::{same_bits, within_ulps};
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use super::rms_norm_case::{AnyWeight, bound, reference, run};

/// Checks one shape and layout, with a weight of the element type.
pub fn check<T: Element>(
    device: &Device,
    seed: u64,
    shape: [i64; 2],
    [read, write]: [Layout; 2],
    params: RmsNorm,
) {
    let (random, cols) = (&mut random(seed), shape[1] as usize);
    let len = shape[0] as usize * cols;
    let (x, residual, weight): (Vec<T>, Vec<T>, Vec<T>) =
        (values(random, len), values(random, len), values(random, cols));
    let upload = |values: &[T]| Matrix::upload(device, values, shape, read);
    let (x_matrix, residual_matrix) = (upload(&x), upload(&residual));
    let weight_matrix =
        AnyWeight::Same(Matrix::upload(device, &weight, [1, cols as i64], Layout::dense(cols as i64)));
    let mut y = Matrix::<T>::poisoned(device, shape, write);
    let mut sum = Matrix::<T>::poisoned(device, shape, write);
    let (read_x, read_residual) = (x_matrix.view(), residual_matrix.view());
    let weight_view = Some(weight_matrix.view());
    let stream = Stream::default();
    add_rms_norm(device, read_x, read_residual, weight_view, y.view_mut(), sum.view_mut(), params, stream)
        .expect("valid arguments");

    let expected: Vec<T> = (0..len).map(|at| T::from_f32(x[at].to_f32() + residual[at].to_f32())).collect();
    same_bits(&sum.download(), &expected);
    // With two roundings, the normalized value is rounded before the product with the weight. This adds an
    // error of half an ulp of the normalized value, which may be more than half an ulp of the result.
    let allowed = if params.rounding == Rounding::Once { bound::<T>() } else { bound::<T>() + 2.0 };
    if dense_short::<T>(shape, [read, write]) {
        let alone = run(device, &expected, Some(&weight_matrix), shape, [read, write], params);
        same_bits(&y.download(), &alone);
    }
    let norm = reference(&wide(&expected), Some(&wide(&weight)), cols, params);
    within_ulps(&y.download(), &norm, cols, allowed);
}

/// Where the results of a call in place go: the numbers of the inputs that `y` and `sum` replace, or `None`
/// for a new tensor.
pub const PLACES: [[Option<usize>; 2]; 5] =
    [[Some(0), Some(1)], [Some(1), Some(0)], [None, Some(0)], [None, Some(1)], [Some(1), None]];

/// Compares calls in place with a call that writes to new tensors. The bits must be equal.
pub fn check_in_place<T: Element>(device: &Device, seed: u64, shape: [i64; 2], layout: Layout) {
    let (random, len) = (&mut random(seed), (shape[0] * shape[1]) as usize);
    let inputs: [Vec<T>; 2] = [values(random, len), values(random, len)];
    let weight: Vec<T> = values(random, shape[1] as usize);
    let weight = AnyWeight::Same(Matrix::upload(device, &weight, [1, shape[1]], Layout::dense(shape[1])));
    let upload = |values: &Vec<T>| Matrix::upload(device, values, shape, layout);
    let call = |places: [Option<usize>; 2]| {
        let inputs = inputs.each_ref().map(upload);
        let fresh = [(); 2].map(|()| Matrix::<T>::poisoned(device, shape, layout));
        let outs: [View; 2] =
            std::array::from_fn(|at| places[at].map_or(fresh[at].view(), |at| inputs[at].view()));
        // SAFETY: each view describes memory of a matrix that lives until the end of the function, and no
        // other code accesses it during the call.
        let [y, sum] = outs.map(|out| unsafe {
            ViewMut::from_raw(out.ptr().cast_mut(), out.dtype(), out.shape(), out.strides()).unwrap()
        });
        let ([x, residual], params) = (inputs.each_ref().map(Matrix::view), RmsNorm::default());
        add_rms_norm(device, x, residual, Some(weight.view()), y, sum, params, Stream::default())
            .expect("in place");
        let read = |at: usize| places[at].map_or(&fresh[at], |at| &inputs[at]).download();
        [read(0), read(1)]
    };
    let expected = call([None; 2]);
    for places in PLACES {
        for (got, expected) in call(places).iter().zip(&expected) {
            same_bits(got, expected);
        }
    }
}

/// Returns whether the norm of `add_rms_norm` must have the same bits as `rms_norm` of the sum. The bits must
/// be equal if inputs and outputs have the same layout, and a row has at most 32 KiB.
fn dense_short<T: Element>([_, cols]: [i64; 2], [read, write]: [Layout; 2]) -> bool {
    read == write && cols as usize * size_of::<T>() <= 32 << 10
}
