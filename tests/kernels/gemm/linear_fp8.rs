//! Compares `linear_fp8` with a model of the tensor core, for sizes close to tile sizes and several layouts.
//! Also compares it with f64 results.
use half::{bf16, f16};
use oxiwarp::{
    Accumulation, Buffer, Device, E4m3, Element, Fp8, LaunchOverride, Overridable as _, Scalar, Stream,
    linear_fp8,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, ulp};
use oxiwarp_tests::tensor::{Layout, Matrix, random, values};
use rand::Rng;

use crate::support::linear_case::Placement;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("linear_fp8::row_sizes", row_sizes),
    ("linear_fp8::column_sizes", column_sizes),
    ("linear_fp8::depths", depths),
    ("linear_fp8::layouts", layouts),
    ("linear_fp8::many_tiles", many_tiles),
    ("linear_fp8::every_kernel", every_kernel),
    ("linear_fp8::nan", nan),
    ("linear_fp8::against_f64", against_f64),
];

const BOTH: [Accumulation; 2] = [Accumulation::F32, Accumulation::Fast];

/// A product to test. `x` has the shape `[m, k]`, and `weight` has the shape `[n, k]`.
#[derive(Clone, Copy, Debug)]
struct Case {
    m: i64,
    n: i64,
    k: i64,
    bias: bool,
    x: Placement,
    weight: Placement,
    y: Placement,
}

impl Case {
    fn of([m, n, k]: [i64; 3], bias: bool) -> Self {
        let dense = Placement { offset: 0, gap: 0 };
        Self { m, n, k, bias, x: dense, weight: dense, y: dense }
    }
}

/// The operands of a product on the host.
struct Operands<T> {
    x: Vec<E4m3>,
    weight: Vec<E4m3>,
    x_scale: Vec<f32>,
    weight_scale: Vec<f32>,
    bias: Vec<T>,
}

impl<T: Element> Operands<T> {
    /// Returns random operands. All finite codes of `x` and `weight` have the same probability, so that terms
    /// of a sum differ by many powers of two.
    fn random(p: &Case) -> Self {
        let rng = &mut random(seed());
        let [m, n, k] = [p.m, p.n, p.k].map(|size| size as usize);
        let mut codes = |len: usize| -> Vec<E4m3> {
            let code = |bits: u8| E4m3::from_bits(if bits & 0x7f == 0x7f { bits - 1 } else { bits });
            (0..len).map(|_| code(rng.random())).collect()
        };
        let (x, weight) = (codes(m * k), codes(n * k));
        let mut scales =
            |len: usize| -> Vec<f32> { (0..len).map(|_| rng.random_range(2e-4..2e-3)).collect() };
        let (x_scale, weight_scale) = (scales(m), scales(n));
        Self { x, weight, x_scale, weight_scale, bias: values(rng, n) }
    }
}

/// The operands of a product on a device. The elements outside of the operands are NaN.
struct OnDevice<T> {
    x: Matrix<E4m3>,
    weight: Matrix<E4m3>,
    x_scale: Buffer<f32>,
    weight_scale: Buffer<f32>,
    bias: Buffer<T>,
}

impl<T: Element> OnDevice<T> {
    fn new(device: &Device, host: &Operands<T>, p: &Case) -> Self {
        let upload = |values: &[E4m3], shape: [i64; 2], place: Placement| {
            let layout = Layout { offset: place.offset, stride: shape[1] + place.gap };
            Matrix::upload(device, values, shape, layout)
        };
        let padded = |scales: &[f32]| device.upload(&[scales, &[f32::NAN; 16]].concat()).expect("memory");
        Self {
            x: upload(&host.x, [p.m, p.k], p.x),
            weight: upload(&host.weight, [p.n, p.k], p.weight),
            x_scale: padded(&host.x_scale),
            weight_scale: padded(&host.weight_scale),
            bias: device.upload(&[&host.bias[..], &[T::POISON; 8]].concat()).expect("memory"),
        }
    }

    /// Runs the op and returns its result.
    fn run(&self, device: &Device, p: &Case, accumulation: Accumulation) -> Vec<T> {
        let layout = Layout { offset: p.y.offset, stride: p.n + p.y.gap };
        let mut y = Matrix::<T>::poisoned(device, [p.m, p.n], layout);
        let bias = p.bias.then(|| self.bias.view_strided(0, &[p.n], &[1]).expect("inside"));
        let [x_scale, weight_scale] = [(&self.x_scale, p.m), (&self.weight_scale, p.n)]
            .map(|(scale, len)| scale.view_strided(0, &[len], &[1]).expect("inside"));
        linear_fp8(
            device,
            self.x.view(),
            x_scale,
            self.weight.view(),
            weight_scale,
            bias,
            y.view_mut(),
            accumulation,
            Stream::default(),
        )
        .expect("a launch");
        y.download()
    }
}

/// Returns the exponent of a number that is not 0.
fn exponent(value: f64) -> i32 {
    libm::ilogb(value)
}

/// Cuts a number toward zero to a multiple of `2^power`.
fn cut(value: f64, power: i32) -> f64 {
    libm::ldexp(libm::ldexp(value, -power).trunc(), power)
}

/// Adds the products of 32 elements to an accumulator, as the tensor core does. The documentation of the
/// executor has this rule (docs/internals/executor.md).
fn tensor_core(sum: f64, x: &[E4m3], weight: &[E4m3]) -> f64 {
    const SMALLEST: i32 = -6;
    let term = |x: E4m3, w: E4m3| {
        let [x, w] = [x, w].map(|value| f64::from(value.to_f32()));
        let of = |value: f64| if value == 0.0 { SMALLEST } else { exponent(value).max(SMALLEST) };
        (x * w, of(x) + of(w))
    };
    let mut terms: Vec<_> = x.iter().zip(weight).map(|(x, w)| term(*x, *w)).collect();
    terms.push((sum, if sum == 0.0 { 0 } else { exponent(sum) }));
    let Some(top) = terms.iter().filter(|term| term.0 != 0.0).map(|term| term.1).max() else { return 0.0 };
    let sum: f64 = terms.iter().map(|term| cut(term.0, top - 13)).sum();
    if sum == 0.0 { 0.0 } else { cut(sum, exponent(sum) - 13) }
}

/// Returns an element of `x wᵀ`, with the rounding errors of the kernels.
fn dot(x: &[E4m3], weight: &[E4m3], accumulation: Accumulation) -> f32 {
    let chain = |x: &[E4m3], weight: &[E4m3]| {
        x.chunks(32).zip(weight.chunks(32)).fold(0.0, |sum, (x, weight)| tensor_core(sum, x, weight)) as f32
    };
    match accumulation {
        Accumulation::Fast => chain(x, weight),
        Accumulation::F32 => {
            x.chunks(128).zip(weight.chunks(128)).fold(0.0, |sum, (x, weight)| sum + chain(x, weight))
        }
    }
}

/// Returns the result that the kernels must give.
fn expected<T: Element>(host: &Operands<T>, p: &Case, accumulation: Accumulation) -> Vec<T> {
    let k = p.k as usize;
    let accumulation = if p.m <= 64 { Accumulation::F32 } else { accumulation };
    let mut results = vec![];
    for (x, x_scale) in host.x.chunks(k).zip(&host.x_scale) {
        for (at, weight) in host.weight.chunks(k).enumerate() {
            let sum = x_scale * (host.weight_scale[at] * dot(x, weight, accumulation));
            let bias = if p.bias { host.bias[at].to_f32() } else { 0.0 };
            results.push(T::from_f32(sum + bias));
        }
    }
    results
}

/// Compares the results of each kernel with the model.
fn check<T: Element>(device: &Device, p: Case) -> Vec<String> {
    let host = Operands::<T>::random(&p);
    let inputs = OnDevice::new(device, &host, &p);
    let mut names = vec![];
    for accumulation in BOTH {
        let expected = expected(&host, &p, accumulation);
        let kernels = if accumulation == Accumulation::Fast { 6 } else { 2 };
        for skip in 0..kernels + u32::from(p.m <= 64) as usize {
            case!("{p:?}, {accumulation:?}, skip {skip}");
            let device = device.with_override(LaunchOverride { skip, ..LaunchOverride::default() });
            let got = inputs.run(&device, &p, accumulation);
            if p.m <= 64 && skip > 0 && accumulation == Accumulation::Fast {
                continue; // This kernel has fast accumulation.
            }
            same_bits(&got, &expected);
            names.extend(device.take_launches());
        }
    }
    names
}

fn both(device: &Device, p: Case) {
    check::<f16>(device, p);
    check::<bf16>(device, p);
}

/// Tests numbers of rows around the tile sizes of all kernels.
fn row_sizes(device: &Device) {
    for m in [1, 2, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 193, 257] {
        both(device, Case::of([m, 40, 48], m % 2 == 0));
    }
}

/// Tests numbers of columns around the tile sizes of all kernels.
fn column_sizes(device: &Device) {
    for n in [8, 16, 24, 56, 64, 72, 120, 128, 136, 184, 200, 264] {
        both(device, Case::of([if n % 24 == 0 { 33 } else { 70 }, n, 48], n % 16 == 0));
    }
}

/// Tests sizes of K around the number of elements of K per buffer. With the larger sizes, a kernel uses the
/// buffers of its ring more than once.
fn depths(device: &Device) {
    for k in [16, 32, 48, 112, 128, 144, 256, 272, 1040, 2576] {
        both(device, Case::of([70, 24, k], k % 32 == 0));
        both(device, Case::of([9, 24, k], k % 32 == 0));
    }
}

/// Tests rows with gaps, and operands that start after the start of their buffer.
fn layouts(device: &Device) {
    for (m, place) in [(70, Placement { offset: 16, gap: 0 }), (20, Placement { offset: 0, gap: 48 })] {
        let p = Case::of([m, 72, 48], true);
        both(device, Case { x: place, weight: place, y: place, ..p });
        both(device, Case { x: place, ..p });
        both(device, Case { weight: place, ..p });
        both(device, Case { y: place, ..p });
    }
}

/// Tests results with many tiles, which the kernels process in groups of several rows of tiles.
fn many_tiles(device: &Device) {
    both(device, Case::of([1300, 136, 16], true));
    both(device, Case::of([70, 520, 32], false));
}

/// Tests that the other tests run every kernel.
fn every_kernel(device: &Device) {
    let mut names = vec![];
    for sizes in [[65, 24, 16], [16, 24, 16], [17, 24, 16], [17, 8328, 16], [64, 24, 16], [64, 8328, 16]] {
        names.extend(check::<bf16>(device, Case::of(sizes, false)));
    }
    let fast = ["128x128", "128x192", "128x256", "192x192", "256x128", "256x192"];
    let promoted = ["128x128", "128x192", "64x16", "64x16_half", "64x32", "64x32_half", "64x64"];
    let fast = fast.map(|tile| format!("linear_fp8_hopper_{tile}_smem "));
    let promoted = promoted.map(|tile| format!("linear_fp8_promoted_hopper_{tile}_smem "));
    for kernel in fast.iter().chain(&promoted) {
        assert!(names.iter().any(|name| name.starts_with(kernel)), "{kernel}is not in {names:?}");
    }
}

/// Tests that a NaN in `x`, in `weight` or in a scale makes all results of its row or column NaN, and no
/// other results.
fn nan(device: &Device) {
    for m in [20, 70] {
        let p = Case::of([m, 72, 48], false);
        let mut host = Operands::<bf16>::random(&p);
        host.x[(3 * p.k + 5) as usize] = E4m3::from_bits(0x7f);
        host.weight[(66 * p.k + 39) as usize] = E4m3::from_bits(0xff);
        host.x_scale[7] = f32::NAN;
        host.weight_scale[9] = f32::INFINITY;
        let inputs = OnDevice::new(device, &host, &p);
        for accumulation in BOTH {
            case!("{m} rows, {accumulation:?}");
            for (at, got) in inputs.run(device, &p, accumulation).iter().enumerate() {
                let (row, column) = (at as i64 / p.n, at as i64 % p.n);
                let right = match (row, column) {
                    (3 | 7, _) | (_, 66) => got.is_nan(),
                    (_, 9) => !got.is_finite(),
                    _ => got.is_finite(),
                };
                assert!(right, "row {row}, column {column}: {got}");
            }
        }
    }
}

/// Compares results with f64. The tensor core cuts each of 33 terms of a step to a multiple of 2^-13 of the
/// largest term, and the sum to 14 bits. With [`Accumulation::F32`], this error is in proportion to the terms
/// of 128 elements of K. With [`Accumulation::Fast`], it is in proportion to all terms before.
fn against_f64(device: &Device) {
    for m in [20, 70] {
        let p = Case::of([m, 72, 1040], true);
        let host = Operands::<f16>::random(&p);
        let inputs = OnDevice::new(device, &host, &p);
        for accumulation in BOTH {
            case!("{m} rows, {accumulation:?}");
            let got = inputs.run(device, &p, accumulation);
            for (at, got) in got.iter().enumerate() {
                let (row, column) = (at / p.n as usize, at % p.n as usize);
                let of = |values: &[E4m3], row: usize| -> Vec<f64> {
                    let k = p.k as usize;
                    values[row * k..][..k].iter().map(|value| f64::from(value.to_f32())).collect()
                };
                let scale = f64::from(host.x_scale[row]) * f64::from(host.weight_scale[column]);
                let terms: Vec<f64> = of(&host.x, row)
                    .iter()
                    .zip(of(&host.weight, column))
                    .map(|(x, w)| x * w * scale)
                    .collect();
                let value = terms.iter().sum::<f64>() + f64::from(host.bias[column].to_f32());
                let size = |terms: &[f64]| terms.iter().map(|term| term.abs()).sum::<f64>();
                let chunk = if accumulation == Accumulation::F32 || m <= 64 { 128 } else { p.k as usize };
                let steps = chunk.div_ceil(32) as f64;
                let inner: f64 =
                    terms.chunks(chunk).map(size).sum::<f64>() * steps * 34.0 * 2.0_f64.powi(-13);
                let allowed = inner + 0.5 * ulp(f16::DTYPE, value.abs() + inner);
                let got = f64::from(got.to_f32());
                let error = (got - value).abs();
                assert!(error <= allowed, "row {row}, column {column}: {got:e}, expected {value:e}");
            }
        }
    }
}
