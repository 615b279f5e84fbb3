//! Compares `linear` with f64 results: sizes close to tile sizes, layouts, alignments, and equal bits of all
//! kernels.
use half::{bf16, f16};
use oxiwarp::{Buffer, Device, Element, LaunchOverride, Overridable as _, Stream, linear};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, ulp};
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("linear::row_sizes", row_sizes),
    ("linear::column_sizes", column_sizes),
    ("linear::depths", depths),
    ("linear::small", small),
    ("linear::layouts", layouts),
    ("linear::alignment", alignment),
    ("linear::many_tiles", many_tiles),
    ("linear::infinite_inputs", infinite_inputs),
    ("linear::equal_bits", equal_bits),
];

/// The numbers of kernels that the op skips in the tests. On Hopper and on the executor, number 0 is a Hopper
/// kernel, and the next numbers are the kernels for other GPUs: 128 x 128 or 64 x 64, the other one, and the
/// general kernel.
const SKIPS: std::ops::Range<usize> = 1..4;

/// The layouts of the operands of a test, relative to dense rows: the first element, and the additional
/// distance of rows.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: usize,
    gap: i64,
}

const DENSE: Place = Place { offset: 0, gap: 0 };

/// A product to test: `x` is `[m, k]`, and `weight` is `[n, k]`.
#[derive(Clone, Copy, Debug)]
struct Product {
    m: i64,
    n: i64,
    k: i64,
    bias: bool,
    x: Place,
    weight: Place,
    y: Place,
    /// First element of the bias in its buffer.
    bias_offset: usize,
}

impl Product {
    fn of([m, n, k]: [i64; 3], bias: bool) -> Self {
        Self { m, n, k, bias, x: DENSE, weight: DENSE, y: DENSE, bias_offset: 0 }
    }
}

/// The operands of a product on a device.
struct Inputs<T> {
    x: Matrix<T>,
    weight: Matrix<T>,
    bias: Buffer<T>,
    expected: Vec<(f64, f64)>,
}

impl<T: Element> Inputs<T> {
    /// Uploads random operands. The elements outside of the operands are NaN.
    fn new(device: &Device, p: &Product) -> Self {
        let mut rng = random(seed());
        let [m, n, k] = [p.m, p.n, p.k].map(|size| size as usize);
        let (x, weight): (Vec<T>, Vec<T>) = (values(&mut rng, m * k), values(&mut rng, n * k));
        let bias: Vec<T> = values(&mut rng, n);
        let expected = expected(p, &wide(&x), &wide(&weight), &wide(&bias));
        let nan = T::from_bits(u32::MAX);
        let mut around = vec![nan; p.bias_offset + n + 8];
        around[p.bias_offset..][..n].copy_from_slice(&bias);
        let upload = |values: &[T], shape: [i64; 2], place: Place| {
            let layout = Layout { offset: place.offset, stride: shape[1] + place.gap };
            Matrix::upload(device, values, shape, layout)
        };
        Self {
            x: upload(&x, [p.m, p.k], p.x),
            weight: upload(&weight, [p.n, p.k], p.weight),
            bias: device.upload(&around).expect("memory"),
            expected,
        }
    }

    /// Runs the op and returns its result.
    fn run(&self, device: &Device, p: &Product) -> Vec<T> {
        let layout = Layout { offset: p.y.offset, stride: p.n + p.y.gap };
        let mut y = Matrix::<T>::poisoned(device, [p.m, p.n], layout);
        let bias = self.bias.view_strided(p.bias_offset, &[p.n], &[1]).expect("inside");
        let bias = p.bias.then_some(bias);
        linear(device, self.x.view(), self.weight.view(), bias, y.view_mut(), Stream::default())
            .expect("a launch");
        y.download()
    }
}

/// Returns each result in f64, and the sum of the magnitudes of its terms.
fn expected(p: &Product, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<(f64, f64)> {
    let k = p.k as usize;
    let one = |x: &[f64], weight: &[f64], bias: f64| {
        let terms = x.iter().zip(weight).map(|(x, w)| x * w).chain([bias]);
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    };
    let bias = |column: usize| if p.bias { bias[column] } else { 0.0 };
    x.chunks(k)
        .flat_map(|x| weight.chunks(k).enumerate().map(move |(at, weight)| one(x, weight, bias(at))))
        .collect()
}

/// Compares results with f64. The tensor cores add products in f32 and may truncate, so each step has an
/// error of at most 2^-22 of the sum of the magnitudes. The result is rounded once.
#[track_caller]
fn close<T: Element>(got: &[T], expected: &[(f64, f64)], p: &Product) {
    assert_eq!(got.len(), expected.len());
    for (at, (got, &(value, size))) in got.iter().zip(expected).enumerate() {
        let inner = size * (p.k as f64 / 16.0 + 2.0) * 2.0_f64.powi(-22);
        let allowed = inner + 0.5 * ulp(T::DTYPE, value.abs() + inner);
        let got = f64::from(got.to_f32());
        assert!(
            (got - value).abs() <= allowed,
            "{p:?}, row {}, column {}: {got:e}, expected {value:e} within {allowed:e}",
            at / p.n as usize,
            at % p.n as usize
        );
    }
}

/// Returns the device, with which the op skips `skip` kernels.
fn skipping(device: &Device, skip: usize) -> Device {
    device.with_override(LaunchOverride { skip, ..LaunchOverride::default() })
}

/// Compares the results of each kernel with f64.
fn check<T: Element>(device: &Device, p: Product) {
    let inputs = Inputs::<T>::new(device, &p);
    for skip in SKIPS {
        case!("{p:?}, skip {skip}");
        close(&inputs.run(&skipping(device, skip), &p), &inputs.expected, &p);
    }
}

fn both(device: &Device, p: Product) {
    check::<f16>(device, p);
    check::<bf16>(device, p);
}

/// Tests numbers of rows around the tile sizes of all kernels.
fn row_sizes(device: &Device) {
    for m in [1, 2, 63, 64, 65, 127, 128, 129, 193, 257] {
        both(device, Product::of([m, 40, 24], m % 2 == 0));
    }
}

/// Tests numbers of columns around the tile sizes of all kernels.
fn column_sizes(device: &Device) {
    for n in [8, 16, 24, 56, 64, 72, 120, 128, 136, 184, 264] {
        both(device, Product::of([33, n, 24], n % 16 == 0));
    }
}

/// Tests numbers of elements of K around the buffers of all kernels, and one and more rounds through the
/// ring.
fn depths(device: &Device) {
    for k in [8, 16, 24, 32, 40, 56, 64, 72, 96, 104, 128, 136, 264] {
        both(device, Product::of([70, 72, k], k % 16 == 0));
    }
}

fn small(device: &Device) {
    for [m, n, k] in [[1, 8, 8], [1, 8, 72], [1, 264, 16], [129, 8, 56]] {
        both(device, Product::of([m, n, k], false));
        both(device, Product::of([m, n, k], true));
    }
}

/// Tests rows with gaps between them. The gaps contain NaN. With gaps of 8 elements, rows are aligned to 16
/// bytes.
fn layouts(device: &Device) {
    for gap in [1, 4, 8, 24] {
        let place = Place { offset: 0, gap };
        let p = Product::of([67, 72, 40], true);
        both(device, Product { x: place, weight: place, y: place, ..p });
        both(device, Product { x: place, ..p });
        both(device, Product { weight: place, ..p });
        both(device, Product { y: place, ..p });
    }
}

/// Tests operands that do not start at a multiple of 16 bytes.
fn alignment(device: &Device) {
    let p = Product::of([67, 72, 40], true);
    for offset in [1, 2, 4, 7, 8] {
        let place = Place { offset, gap: 0 };
        both(device, Product { x: place, ..p });
        both(device, Product { weight: place, ..p });
        both(device, Product { y: place, ..p });
        both(device, Product { bias_offset: offset, ..p });
    }
}

/// Tests more rows of tiles than a group of the order of tiles has.
fn many_tiles(device: &Device) {
    both(device, Product::of([1300, 136, 8], true));
    both(device, Product::of([600, 8, 24], false));
    both(device, Product::of([70, 520, 24], false));
}

/// Tests that an infinite or NaN element of `x` or `weight` affects only its own row or column.
fn infinite_inputs(device: &Device) {
    let (m, n, k) = (70, 72, 40);
    let p = Product::of([m, n, k], false);
    for skip in SKIPS {
        let device = skipping(device, skip);
        let mut x = vec![bf16::ONE; (m * k) as usize];
        let mut weight = vec![bf16::ONE; (n * k) as usize];
        x[(3 * k + 5) as usize] = bf16::INFINITY;
        weight[(66 * k + 39) as usize] = bf16::NAN;
        let inputs = Inputs {
            x: Matrix::upload(&device, &x, [m, k], Layout::dense(k)),
            weight: Matrix::upload(&device, &weight, [n, k], Layout::dense(k)),
            bias: device.upload(&[bf16::ZERO; 8]).expect("memory"),
            expected: vec![],
        };
        let p = Product { n, ..p };
        for (at, got) in inputs.run_without_bias(&device, &p).iter().enumerate() {
            let (row, column) = (at as i64 / n, at as i64 % n);
            let right = match (row, column) {
                (_, 66) => got.is_nan(),
                (3, _) => *got == bf16::INFINITY,
                _ => got.to_f32() == k as f32,
            };
            assert!(right, "skip {skip}, row {row}, column {column}: {got}");
        }
    }
}

impl<T: Element> Inputs<T> {
    fn run_without_bias(&self, device: &Device, p: &Product) -> Vec<T> {
        let mut y = Matrix::<T>::poisoned(device, [p.m, p.n], Layout::dense(p.n));
        linear(device, self.x.view(), self.weight.view(), None, y.view_mut(), Stream::default())
            .expect("a launch");
        y.download()
    }
}

/// Tests that all kernels of a device give the same bits. The test also checks that it has run each of the
/// kernels for other GPUs than Hopper.
fn equal_bits(device: &Device) {
    fn of<T: Element>(device: &Device) {
        let mut names = vec![];
        for [m, n, k] in [[130, 136, 200], [65, 72, 104], [200, 24, 72]] {
            let p = Product::of([m, n, k], true);
            let inputs = Inputs::<T>::new(device, &p);
            let results = SKIPS.map(|skip| {
                let device = skipping(device, skip);
                let result = inputs.run(&device, &p);
                names.extend(device.take_launches());
                result
            });
            let results: Vec<_> = results.collect();
            for other in &results[1..] {
                same_bits(other, &results[0]);
            }
        }
        for kernel in ["linear_64x64_smem ", "linear_64x64_general_smem "] {
            assert!(names.iter().any(|name| name.starts_with(kernel)), "{kernel}is not in {names:?}");
        }
    }
    of::<f16>(device);
    of::<bf16>(device);
}
