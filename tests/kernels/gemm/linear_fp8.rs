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

/// The scales, and how the op adds products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Rows(Accumulation),
    Blocks,
}

const FORMS: [Form; 3] = [Form::Rows(Accumulation::F32), Form::Rows(Accumulation::Fast), Form::Blocks];

impl Form {
    /// Returns the form whose bits the op gives, which has fast accumulation only for more than 64 rows.
    fn computed(self, p: &ScaledCase) -> Self {
        if self == Self::Rows(Accumulation::Fast) && p.m <= 64 { Self::Rows(Accumulation::F32) } else { self }
    }

    /// Returns the number of kernels for many rows.
    fn kernels(self) -> usize {
        match self {
            Self::Rows(Accumulation::F32) => 2,
            Self::Rows(Accumulation::Fast) => 6,
            Self::Blocks => 1,
        }
    }
}

/// Elements of K, and rows of `weight`, that share a scale.
const BLOCK: usize = 128;

/// A product to test. `x` has the shape `[m, k]`, and `weight` has the shape `[n, k]`.
#[derive(Clone, Copy, Debug)]
struct ScaledCase {
    m: i64,
    n: i64,
    k: i64,
    bias: bool,
    x: Placement,
    weight: Placement,
    y: Placement,
}

impl ScaledCase {
    fn of([m, n, k]: [i64; 3], bias: bool) -> Self {
        let dense = Placement { offset: 0, gap: 0 };
        Self { m, n, k, bias, x: dense, weight: dense, y: dense }
    }
}

/// The operands of a product on the host. The scales are those per row, then those per block. The scales of
/// `x` per block are transposed, with a gap after the scales of a block, as `quantize_fp8` returns them.
struct HostOperands<T> {
    x: Vec<E4m3>,
    weight: Vec<E4m3>,
    x_scale: [Vec<f32>; 2],
    weight_scale: [Vec<f32>; 2],
    bias: Vec<T>,
}

impl<T: Element> HostOperands<T> {
    /// Returns random operands. All finite codes of `x` and `weight` have the same probability, so that terms
    /// of a sum differ by many powers of two.
    fn random(p: &ScaledCase) -> Self {
        let rng = &mut random(seed());
        let [m, n, k] = [p.m, p.n, p.k].map(|size| size as usize);
        let mut codes = |len: usize| -> Vec<E4m3> {
            let code = |bits: u8| E4m3::from_bits(if bits & 0x7f == 0x7f { bits - 1 } else { bits });
            (0..len).map(|_| code(rng.random())).collect()
        };
        let (x, weight) = (codes(m * k), codes(n * k));
        let mut scales =
            |len: usize| -> Vec<f32> { (0..len).map(|_| rng.random_range(2e-4..2e-3)).collect() };
        let blocks = k.div_ceil(BLOCK);
        let x_scale = [scales(m), scales(m.next_multiple_of(4) * blocks)];
        let weight_scale = [scales(n), scales(n.div_ceil(BLOCK) * blocks)];
        Self { x, weight, x_scale, weight_scale, bias: values(rng, n) }
    }

    /// Returns the scales of a row of `x` and a row of `weight`, for block `block` of K.
    fn scales(&self, p: &ScaledCase, form: Form, [row, column]: [usize; 2], block: usize) -> [f32; 2] {
        match form {
            Form::Rows(_) => [self.x_scale[0][row], self.weight_scale[0][column]],
            Form::Blocks => {
                let x = block * (p.m as usize).next_multiple_of(4) + row;
                let weight = column / BLOCK * (p.k as usize).div_ceil(BLOCK) + block;
                [self.x_scale[1][x], self.weight_scale[1][weight]]
            }
        }
    }

    /// Returns a row of `x` and a row of `weight`.
    fn rows(&self, p: &ScaledCase, [row, column]: [usize; 2]) -> [&[E4m3]; 2] {
        let k = p.k as usize;
        [&self.x[row * k..][..k], &self.weight[column * k..][..k]]
    }

    /// Returns the element of `y` that the kernels must give.
    fn expected(&self, p: &ScaledCase, form: Form, at: [usize; 2]) -> T {
        let [x, weight] = self.rows(p, at);
        let scales = |block| self.scales(p, form, at, block);
        let blocks = || x.chunks(BLOCK).zip(weight.chunks(BLOCK));
        let sum = match form {
            Form::Rows(Accumulation::Fast) => chain(x, weight),
            Form::Rows(Accumulation::F32) => blocks().fold(0.0, |sum, (x, weight)| sum + chain(x, weight)),
            Form::Blocks => blocks().enumerate().fold(0.0, |sum, (block, (x, weight))| {
                chain(x, weight).mul_add(scales(block)[0] * scales(block)[1], sum)
            }),
        };
        let sum = if form == Form::Blocks { sum } else { scales(0)[0] * (scales(0)[1] * sum) };
        T::from_f32(sum + if p.bias { self.bias[at[1]].to_f32() } else { 0.0 })
    }
}

/// The operands of a product on a device. The elements outside of the operands are NaN.
struct OnDevice<T> {
    x: Matrix<E4m3>,
    weight: Matrix<E4m3>,
    x_scale: [Buffer<f32>; 2],
    weight_scale: [Buffer<f32>; 2],
    bias: Buffer<T>,
}

impl<T: Element> OnDevice<T> {
    fn new(device: &Device, host: &HostOperands<T>, p: &ScaledCase) -> Self {
        let upload = |values: &[E4m3], shape: [i64; 2], place: Placement| {
            let layout = Layout { offset: place.offset, stride: shape[1] + place.gap };
            Matrix::upload(device, values, shape, layout)
        };
        let padded = |scales: &[f32]| device.upload(&[scales, &[f32::NAN; 16]].concat()).expect("memory");
        Self {
            x: upload(&host.x, [p.m, p.k], p.x),
            weight: upload(&host.weight, [p.n, p.k], p.weight),
            x_scale: [0, 1].map(|form| padded(&host.x_scale[form])),
            weight_scale: [0, 1].map(|form| padded(&host.weight_scale[form])),
            bias: device.upload(&[&host.bias[..], &[T::POISON; 8]].concat()).expect("memory"),
        }
    }

    /// Runs the op and returns its result.
    fn run(&self, device: &Device, p: &ScaledCase, form: Form) -> Vec<T> {
        let layout = Layout { offset: p.y.offset, stride: p.n + p.y.gap };
        let mut y = Matrix::<T>::poisoned(device, [p.m, p.n], layout);
        let bias = p.bias.then(|| self.bias.view_strided(0, &[p.n], &[1]).expect("inside"));
        let (blocks, weight_blocks) = ((p.k + 127) / 128, (p.n + 127) / 128);
        let [x_scale, weight_scale] =
            [&self.x_scale, &self.weight_scale].map(|scales| &scales[usize::from(form == Form::Blocks)]);
        let ([x_shape, x_strides], [weight_shape, weight_strides], accumulation) = match form {
            Form::Rows(accumulation) => ([[p.m, 1], [1, 1]], [[p.n, 1], [1, 1]], accumulation),
            Form::Blocks => (
                [[p.m, blocks], [1, (p.m + 3) / 4 * 4]],
                [[weight_blocks, blocks], [blocks, 1]],
                Accumulation::F32,
            ),
        };
        let x_scale = x_scale.view_strided(0, &x_shape, &x_strides).expect("inside");
        let weight_scale = weight_scale.view_strided(0, &weight_shape, &weight_strides).expect("inside");
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

/// Returns the sum of products that the tensor core computes in one accumulator.
fn chain(x: &[E4m3], weight: &[E4m3]) -> f32 {
    let steps = x.chunks(32).zip(weight.chunks(32));
    steps.fold(0.0, |sum, (x, weight)| tensor_core(sum, x, weight)) as f32
}

/// Compares the results of each kernel with the model. Returns the names of the launched kernels.
fn check<T: Element>(device: &Device, p: ScaledCase) -> Vec<String> {
    let host = HostOperands::<T>::random(&p);
    let inputs = OnDevice::new(device, &host, &p);
    let places = || (0..p.m as usize).flat_map(|row| (0..p.n as usize).map(move |column| [row, column]));
    let mut names = vec![];
    for form in FORMS {
        let expected = |form| -> Vec<T> { places().map(|at| host.expected(&p, form, at)).collect() };
        let few = usize::from(p.m <= 64);
        // The model of the tensor core takes most of the time, so equal results are computed once.
        let others = expected(form);
        let first = (form.computed(&p) != form).then(|| expected(form.computed(&p)));
        let first = first.as_ref().unwrap_or(&others);
        for skip in 0..form.kernels() + few {
            case!("{p:?}, {form:?}, skip {skip}");
            let device = device.with_override(LaunchOverride { skip, ..LaunchOverride::default() });
            same_bits(&inputs.run(&device, &p, form), if skip < few { first } else { &others });
            names.extend(device.take_launches());
        }
    }
    names
}

fn both(device: &Device, p: ScaledCase) {
    check::<f16>(device, p);
    check::<bf16>(device, p);
}

/// Tests numbers of rows around the tile sizes of all kernels.
fn row_sizes(device: &Device) {
    for m in [1, 2, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 193, 257] {
        both(device, ScaledCase::of([m, 40, 48], m % 2 == 0));
    }
}

/// Tests numbers of columns around the tile sizes of all kernels.
fn column_sizes(device: &Device) {
    for n in [8, 16, 24, 56, 64, 72, 120, 128, 136, 184, 200, 264] {
        both(device, ScaledCase::of([if n % 24 == 0 { 33 } else { 70 }, n, 48], n % 16 == 0));
    }
}

/// Tests sizes of K around the number of elements of K per buffer. With the larger sizes, a kernel uses the
/// buffers of its ring more than once.
fn depths(device: &Device) {
    for k in [16, 32, 48, 112, 128, 144, 256, 272, 1040, 2576] {
        both(device, ScaledCase::of([70, 24, k], k % 32 == 0));
        both(device, ScaledCase::of([9, 24, k], k % 32 == 0));
    }
}

/// Tests rows with gaps, and operands that start after the start of their buffer.
fn layouts(device: &Device) {
    for (m, place) in [(70, Placement { offset: 16, gap: 0 }), (20, Placement { offset: 0, gap: 48 })] {
        let p = ScaledCase::of([m, 72, 48], true);
        both(device, ScaledCase { x: place, weight: place, y: place, ..p });
        both(device, ScaledCase { x: place, ..p });
        both(device, ScaledCase { weight: place, ..p });
        both(device, ScaledCase { y: place, ..p });
    }
}

/// Tests results with many tiles, which the kernels process in groups of several rows of tiles.
fn many_tiles(device: &Device) {
    both(device, ScaledCase::of([1300, 136, 16], true));
    both(device, ScaledCase::of([70, 520, 32], false));
}

/// Tests that the other tests run every kernel.
fn every_kernel(device: &Device) {
    let mut names = vec![];
    for sizes in [[65, 24, 16], [16, 24, 16], [17, 24, 16], [17, 8328, 16], [64, 24, 16], [64, 8328, 16]] {
        names.extend(check::<bf16>(device, ScaledCase::of(sizes, false)));
    }
    let fast = ["128x128", "128x192", "128x256", "192x192", "256x128", "256x192"];
    let promoted = ["128x128", "128x192", "64x16", "64x16_half", "64x32", "64x32_half", "64x64"];
    let block = promoted.iter().filter(|tile| **tile != "128x192");
    let block: Vec<_> = block.map(|tile| format!("linear_fp8_block_hopper_{tile}_smem ")).collect();
    let fast = fast.map(|tile| format!("linear_fp8_hopper_{tile}_smem "));
    let promoted = promoted.map(|tile| format!("linear_fp8_promoted_hopper_{tile}_smem "));
    for kernel in fast.iter().chain(&promoted).chain(&block) {
        assert!(names.iter().any(|name| name.starts_with(kernel)), "{kernel}is not in {names:?}");
    }
}

/// Tests that a NaN in `x`, in `weight` or in a scale makes all results of its row or column NaN, and no
/// other results.
fn nan(device: &Device) {
    for m in [20, 70] {
        let p = ScaledCase::of([m, 72, 48], false);
        let mut host = HostOperands::<bf16>::random(&p);
        host.x[(3 * p.k + 5) as usize] = E4m3::from_bits(0x7f);
        host.weight[(66 * p.k + 39) as usize] = E4m3::from_bits(0xff);
        for scales in &mut host.x_scale {
            scales[7] = f32::NAN;
        }
        host.weight_scale[0][9] = f32::INFINITY;
        let inputs = OnDevice::new(device, &host, &p);
        for form in FORMS {
            case!("{m} rows, {form:?}");
            for (at, got) in inputs.run(device, &p, form).iter().enumerate() {
                let (row, column) = (at as i64 / p.n, at as i64 % p.n);
                let right = match (row, column) {
                    (3 | 7, _) | (_, 66) => got.is_nan(),
                    (_, 9) if form != Form::Blocks => !got.is_finite(),
                    _ => got.is_finite(),
                };
                assert!(right, "row {row}, column {column}: {got}");
            }
        }
    }
}

/// Compares results with f64. The tensor core cuts each of 33 terms of a step to a multiple of 2^-13 of the
/// largest term, and the sum to 14 bits. This error is in proportion to the terms that one accumulator has
/// added, those of 128 elements of K or all.
fn against_f64(device: &Device) {
    for m in [20, 70] {
        let p = ScaledCase::of([m, 72, 1040], true);
        let host = HostOperands::<f16>::random(&p);
        let inputs = OnDevice::new(device, &host, &p);
        for form in FORMS {
            case!("{m} rows, {form:?}");
            let chunk =
                if form.computed(&p) == Form::Rows(Accumulation::Fast) { p.k as usize } else { BLOCK };
            for (at, got) in inputs.run(device, &p, form).iter().enumerate() {
                let at = [at / p.n as usize, at % p.n as usize];
                let [x, weight] = host.rows(&p, at);
                let term = |(k, (x, weight)): (usize, (&E4m3, &E4m3))| {
                    let scales = host.scales(&p, form, at, k / BLOCK);
                    [x.to_f32(), weight.to_f32(), scales[0], scales[1]].map(f64::from).iter().product::<f64>()
                };
                let terms: Vec<f64> = x.iter().zip(weight).enumerate().map(term).collect();
                let value = terms.iter().sum::<f64>() + f64::from(host.bias[at[1]].to_f32());
                let size: f64 = terms.iter().map(|term| term.abs()).sum();
                let inner = size * chunk.div_ceil(32) as f64 * 34.0 * 2.0_f64.powi(-13);
                let allowed = inner + 0.5 * ulp(f16::DTYPE, value.abs() + inner);
                let got = f64::from(got.to_f32());
                assert!(
                    (got - value).abs() <= allowed,
                    "{at:?}: {got:e}, expected {value:e} within {allowed:e}"
                );
            }
        }
    }
}
