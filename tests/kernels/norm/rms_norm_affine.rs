//! Compares `rms_norm_affine` with f64 results: an RMSNorm with a bias, and with a weight and a bias per
//! head.
use half::{bf16, f16};
use oxiwarp::{Device, Element, RmsNorm, Rounding, Stream, View, ViewMut, rms_norm_affine};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, ulp};
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use crate::support::errors::says;
use crate::support::rms_norm_case::{AnyWeight, bound, reference, run as run_plain};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("rms_norm_affine::f32_against_f64", against_f64::<f32>),
    ("rms_norm_affine::f16_against_f64", against_f64::<f16>),
    ("rms_norm_affine::bf16_against_f64", against_f64::<bf16>),
    ("rms_norm_affine::is_rms_norm_of_each_head", each_head),
    ("rms_norm_affine::bad_input", refuses),
];

/// A weight or bias: `heads` vectors of `cols` elements, in the type `T` or in f32.
struct Vectors<T> {
    same: Option<Matrix<T>>,
    single: Option<Matrix<f32>>,
    wide: Vec<f64>,
    heads: i64,
    cols: i64,
}

impl<T: Element> Vectors<T> {
    fn random(device: &Device, seed: u64, [heads, cols]: [i64; 2], single: bool, offset: usize) -> Self {
        let (random, len, layout) =
            (&mut random(seed), (heads * cols) as usize, Layout { offset, stride: heads * cols });
        let shape = [1, heads * cols];
        if single {
            let vectors: Vec<f32> = values(random, len);
            let matrix = Matrix::upload(device, &vectors, shape, layout);
            return Self { same: None, single: Some(matrix), wide: wide(&vectors), heads, cols };
        }
        let vectors: Vec<T> = values(random, len);
        let matrix = Matrix::upload(device, &vectors, shape, layout);
        Self { same: Some(matrix), single: None, wide: wide(&vectors), heads, cols }
    }

    /// Returns the operand: of shape `[cols]` if there is one vector, otherwise of shape `[heads, cols]`.
    fn view(&self) -> View<'_> {
        fn of<'a, E: Element>(matrix: &'a Matrix<E>, shape: &[i64], strides: &[i64]) -> View<'a> {
            matrix.buffer.view_strided(matrix.layout.offset, shape, strides).expect("vectors")
        }
        let (shape, strides) = ([self.heads, self.cols], [self.cols, 1]);
        let from = usize::from(self.heads == 1);
        match (&self.same, &self.single) {
            (Some(same), _) => of(same, &shape[from..], &strides[from..]),
            (_, Some(single)) => of(single, &shape[from..], &strides[from..]),
            _ => unreachable!("one of both is present"),
        }
    }

    /// Returns the vector of row `row` in f64.
    fn of_row(&self, row: usize) -> &[f64] {
        let (head, cols) = (row % self.heads as usize, self.cols as usize);
        &self.wide[head * cols..][..cols]
    }
}

/// Runs the op on `tokens` tokens of `heads` heads.
fn run<T: Element>(
    device: &Device,
    x: &Matrix<T>,
    [weight, bias]: [Option<&Vectors<T>>; 2],
    tokens: i64,
    layout: Layout,
    params: RmsNorm,
) -> Vec<T> {
    let mut y = Matrix::<T>::poisoned(device, x.shape, layout);
    let [weight, bias] = [weight, bias].map(|vectors| vectors.map(Vectors::view));
    let (x, out) = (x.view_batches(tokens), y.view_batches_mut(tokens));
    rms_norm_affine(device, x, weight, bias, out, params, Stream::default()).expect("valid arguments");
    y.download()
}

/// Checks one shape with each combination of weight and bias: absent, for all heads, or per head, in the
/// element type or in f32.
fn check<T: Element>(device: &Device, [tokens, heads, cols]: [i64; 3], layout: Layout) {
    let (seed, shape) = (seed(), [tokens * heads, cols]);
    let x: Vec<T> = values(&mut random(seed), (shape[0] * cols) as usize);
    let x_matrix = Matrix::upload(device, &x, shape, layout);
    let vectors = |seed: u64, heads: i64, single: bool| {
        Vectors::<T>::random(device, seed, [heads, cols], single, layout.offset)
    };
    let weights =
        [vectors(seed + 1, heads, false), vectors(seed + 2, heads, true), vectors(seed + 3, 1, false)];
    let biases =
        [vectors(seed + 4, heads, true), vectors(seed + 5, 1, false), vectors(seed + 6, heads, false)];
    let (weights, biases) = (weights.each_ref().map(Some), biases.each_ref().map(Some));
    for (weight, bias) in [
        (weights[0], None),
        (weights[1], biases[0]),
        (weights[2], biases[2]),
        (None, biases[1]),
        (weights[0], biases[1]),
    ] {
        for (rounding, weight_offset) in
            [(Rounding::Once, 0.0), (Rounding::Once, 1.0), (Rounding::BeforeWeight, 0.0)]
        {
            let params = RmsNorm { rounding, weight_offset, ..RmsNorm::default() };
            let y = run(device, &x_matrix, [weight, bias], tokens, layout, params);
            for (row, (x, y)) in x.chunks(cols as usize).zip(y.chunks(cols as usize)).enumerate() {
                let weight = weight.map(|weight| weight.of_row(row));
                let bias = bias.map(|bias| bias.of_row(row));
                check_row(x, y, weight, bias, params);
            }
        }
    }
}

/// Compares one row with f64. The error of the norm is that of `rms_norm`. Each further rounding adds half an
/// ulp of the value that is rounded.
fn check_row<T: Element>(x: &[T], y: &[T], weight: Option<&[f64]>, bias: Option<&[f64]>, params: RmsNorm) {
    let cols = x.len();
    let plain = reference(&wide(x), None, cols, params);
    let products = reference(&wide(x), weight, cols, params);
    for c in 0..cols {
        let (right, ulp) =
            (products[c] + bias.map_or(0.0, |bias| bias[c]), |value: f64| ulp(T::DTYPE, value));
        let mut allowed = bound::<T>() * ulp(products[c]) + 0.51 * ulp(right) + 0.5 * ulp(products[c]);
        if params.rounding == Rounding::BeforeWeight {
            let factor = weight.map_or(1.0, |weight| weight[c].abs());
            allowed += 0.51 * ulp(plain[c]) * factor + ulp(products[c]);
        }
        let off = (f64::from(y[c].to_f32()) - right).abs();
        assert!(off <= allowed, "column {c}: {:?}, expected {right} within {allowed:e}, {params:?}", y[c]);
    }
}

/// The row lengths select each kernel: two and four packs in registers, rows that the kernel reads twice, and
/// rows without 16-byte accesses.
fn against_f64<T: Element>(device: &Device) {
    for [tokens, heads, cols] in [
        [1, 1, 1],
        [3, 2, 7],
        [5, 3, 64],
        [7, 24, 128],
        [2, 5, 129],
        [3, 2, 3072],
        [2, 3, 20_480],
        [1, 2, 40_961],
    ] {
        for layout in [
            Layout::dense(cols),
            Layout { offset: 16, stride: cols + 64 },
            Layout { offset: 1, stride: cols },
        ] {
            case!("{tokens} x {heads} x {cols}, {layout:?}");
            check::<T>(device, [tokens, heads, cols], layout);
        }
    }
}

/// Without a bias, the bits of each row are those of `rms_norm` with the weight of the row's head.
fn each_head(device: &Device) {
    for cols in [8, 64, 128, 320, 3072] {
        case!("{cols} columns");
        let (seed, layout, shape) = (seed(), Layout::dense(cols), [4 * 3, cols]);
        let x: Vec<bf16> = values(&mut random(seed), (12 * cols) as usize);
        let weight = Vectors::<bf16>::random(device, seed + 1, [3, cols], false, 0);
        for rounding in [Rounding::Once, Rounding::BeforeWeight] {
            let params = RmsNorm { rounding, ..RmsNorm::default() };
            let y = run(
                device,
                &Matrix::upload(device, &x, shape, layout),
                [Some(&weight), None],
                4,
                layout,
                params,
            );
            for head in 0..3 {
                let of_head: Vec<bf16> = weight.of_row(head).iter().map(|&w| bf16::from_f64(w)).collect();
                let of_head = AnyWeight::Same(Matrix::upload(device, &of_head, [1, cols], layout));
                let right = run_plain(device, &x, Some(&of_head), shape, [layout; 2], params);
                for row in (head..12).step_by(3) {
                    let row = row * cols as usize..(row + 1) * cols as usize;
                    same_bits(&y[row.clone()], &right[row]);
                }
            }
        }
    }
}

fn refuses(device: &Device) {
    let x = device.upload(&[1.0_f32; 64]).unwrap();
    let half = device.upload(&[f16::ONE; 64]).unwrap();
    let mut y = device.upload(&[7.0_f32; 64]).unwrap();
    let shape = [2, 4, 8];
    let mut run = |weight: Option<View>, bias: Option<View>, params: RmsNorm| {
        let (x, y): (View, ViewMut) = (x.view(&shape).unwrap(), y.view_mut(&shape).unwrap());
        rms_norm_affine(device, x, weight, bias, y, params, Stream::default())
    };
    let (view, plain) = (|shape: &[i64]| x.view(shape).unwrap(), RmsNorm::default());
    let mut says_of =
        |weight, bias, text: &str| says(run(weight, bias, plain), &format!("rms_norm_affine: {text}"));
    says_of(Some(view(&[3, 8])), None, "weight has shape [3, 8], expected [4, 8]");
    says_of(Some(view(&[7])), None, "weight has shape [7], expected [8]");
    says_of(Some(view(&[2, 4, 8])), None, "weight has shape [2, 4, 8], expected [4, 8]");
    says_of(None, Some(view(&[8, 4])), "bias has shape [8, 4], expected [4, 8]");
    says_of(None, Some(half.view(&[8]).unwrap()), "bias is f16, expected f32");
    let apart = x.view_strided(0, &[4, 8], &[16, 1]).unwrap();
    says_of(None, Some(apart), "bias of shape [4, 8] has strides [16, 1]: it must be contiguous");
    says(run(None, None, RmsNorm { eps: -1.0, ..plain }), "rms_norm_affine: eps is -1");
    assert!(y.download().unwrap().iter().all(|y| *y == 7.0), "something was written");
}
